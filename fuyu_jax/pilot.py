"""The main job: copy the oracle, run a decision update, measure both against every baseline, report."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fuyu_jax import recipes
from fuyu_jax.evaluate import baselines
from fuyu_jax.evaluate.diagnostics import StateSet, kl_between, make_diagnose
from fuyu_jax.evaluate.episodes import record_episodes
from fuyu_jax.evaluate.measure import CHUNK, EVALUATION_SEED, Labels, Roll, chunks, greedy, measure_policy, pass_at
from fuyu_jax.evaluate.metrics import BUDGET, metrics_from_outcomes, summary
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.evaluate.state_sets import oracle_path_states, visited_states
from fuyu_jax.learn.arms import bc
from fuyu_jax.learn.improvement import improve
from fuyu_jax.learn.training import Diverged
from fuyu_jax.policy import Params, Play, make_play
from fuyu_jax.runs.errors import RunStopped
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.manifest import make_manifest, peak_memory
from fuyu_jax.runs.memory import check_memory
from fuyu_jax.runs.policies import (
    CLONING,
    MACHINE,
    UPDATING,
    BuiltPolicy,
    PolicyFolder,
    about_policy,
    build_policy,
)
from fuyu_jax.runs.progress import Progress, silence
from fuyu_jax.runs.recorder import Recorder
from fuyu_jax.runs.report import EPISODES, headline_text, write_report
from fuyu_jax.runs.settings import PilotSettings, parse_runs
from fuyu_jax.runs.shared_bc import Shelf, copied_epochs, copying_recipe, epochs_of_run
from fuyu_jax.runs.tables import METRICS_COLUMNS, OUTCOMES_COLUMNS
from fuyu_jax.runs.tensorboard import EventFiles, check_tensorboard
from vm.behaviour import EVALUATION_SPLITS
from vm.oracle import Placement
from vm.streams import split_manifest
from vm.tasks import Tasks, make_tasks
from vm.types import THREEFRY

PASS_SAMPLES = 8
DIAGNOSTIC_SPLIT = "val_mixed"


def main(argv: Sequence[str]) -> None:
    """Run what a command line asks for, and print of each run the headline table and where its report is."""
    for settings in parse_runs(argv):
        with silence(settings.quiet):
            pilot = Pilot.prepare(settings)
            pilot.run()
        report = write_report(pilot.folder.path)
        print(f"\n{headline_text(pilot.folder.path)}\n\nreport: {report}", flush=True)


@dataclass(frozen=True)
class Pilot:
    """One run: its settings and folder, the policy's structure and the evaluation tasks.

    Attributes:
      settings: what was asked for.
      folder: where everything is written.
      policies: where the policy of each phase is kept.
      record: the train log.
      built: the policy before any training.
      splits: evaluation tasks.
    """

    settings: PilotSettings
    folder: RunFolder
    policies: PolicyFolder
    record: Recorder
    built: BuiltPolicy
    splits: dict[str, Tasks]

    @classmethod
    def prepare(cls, settings: PilotSettings) -> Pilot:
        """Load the model, claim the folder, make the evaluation tasks. What the user got wrong shows before writing."""
        RunFolder.check_free(settings.out)
        check_memory(settings)
        if settings.tensorboard:
            check_tensorboard()
        built = build_policy(settings)
        if settings.bc_from:
            epochs_of_run(Path(settings.bc_from), copying_recipe(settings, built), built.params.trained)
        folder = RunFolder.create(settings.out, f"{settings.arm}_{settings.preset}_s{settings.seed}")
        policies = PolicyFolder.of_run(folder.path, settings.checkpoint_dir)
        policies.claim()
        folder.write_json("config.json", settings.to_dict())
        with Progress("making tasks", len(EVALUATION_SPLITS)) as progress:
            splits = {}
            for split in EVALUATION_SPLITS:
                splits[split] = make_tasks(
                    split, EVALUATION_SEED, settings.eval_tasks, settings.start, settings.public, settings.hidden
                )
                progress.update()
        manifests = {split: split_manifest(tasks) for split, tasks in splits.items()}
        seeds = {"evaluation tasks": EVALUATION_SEED, "initialisation, train stream and sampling": settings.seed}
        folder.write_json("dataset_manifest.json", make_manifest(manifests, seeds) | {"model": built.source})
        folder.log(f"prepared {sum(map(len, splits.values()))} evaluation tasks for {settings.command()}")
        record = Recorder(folder, EventFiles(folder.path).follow) if settings.tensorboard else Recorder(folder)
        return cls(settings, folder, policies, record, built, splits)

    def run(self) -> None:
        """Train and measure every phase, and write the tables."""
        started = time.monotonic()
        measured = [self._baselines()]
        results: dict[str, Any] = {"pass_at_8": {}}
        state_sets: dict[str, StateSet] = {
            "oracle_path": oracle_path_states(self._diagnostic_tasks(), MACHINE, self._placement)
        }
        play = make_play(self.built.reader, self.settings.no_repeat)
        diagnose = make_diagnose(self.built.reader)
        copied: dict[str, jax.Array] = {}  # the copied policy's log-probabilities on each set of states
        for phase, params in self._guarded(play):
            with Progress(f"measuring {phase}", len(self.splits)) as progress:
                labels = Labels(self.settings.arm, phase, self.settings.seed)
                measured.append(
                    measure_policy(
                        greedy(play, params),
                        self.splits,
                        self.settings.budgets,
                        labels,
                        advance=lambda split: progress.update(),
                    )
                )
            if phase == "bc_policy":
                state_sets["bc_states"] = self._visited(greedy(play, params))
                copied = {name: diagnose(params, states)[1] for name, states in state_sets.items()}
            for name, reference in copied.items():
                accuracies, log_probs = diagnose(params, state_sets[name])
                kl = kl_between(log_probs, reference, state_sets[name].states.weight)
                self.record.diagnostics(phase, name, {**accuracies, "kl_to_bc": kl})
            if copied:
                lanes = len(self.settings.budgets)
                rates = pass_at(play, params, self.splits, BUDGET, PASS_SAMPLES, lanes, self.settings.seed)
                results["pass_at_8"][phase] = rates
            self._write_tables(measured, results)
            self.folder.log(f"{phase}: {self._says(measured[-1])}")
        lanes = len(self.settings.budgets)
        shown = record_episodes(self.built.reader, play, params, self.splits, lanes, phase)
        self.folder.write_json_lines(EPISODES, shown)
        minutes = (time.monotonic() - started) / 60
        self.folder.log(f"finished: training and measuring took {minutes:.1f} minutes, {peak_memory():.2f} GiB at most")

    def _guarded(self, play: Play) -> Iterator[tuple[str, Params]]:
        """The phases; training that stops making sense is saved as it is, and told.

        Raises:
          RunStopped: then.
        """
        try:
            yield from self._phases(play)
        except Diverged as error:
            phase = f"stopped_at_update_{error.update}"
            self._save(phase, error.params)
            self.folder.log(f"stopped: {error}")
            raise RunStopped(
                f"training stopped at update {error.update}: {error}; the policy before them is in "
                f"{self.policies.path / phase}; use a smaller learning rate."
            ) from error

    def _phases(self, play: Play) -> Iterator[tuple[str, Params]]:
        """Train, and hand out each phase's name and parameters as they are reached."""
        settings = self.settings
        run_key = jax.random.key(settings.seed, impl=THREEFRY)
        clone_key, update_key = (jax.random.fold_in(run_key, purpose) for purpose in (CLONING, UPDATING))
        source = recipes.demonstrations(settings)
        cloning = recipes.make_cloning(settings, self.built.policy, source)
        recipe = copying_recipe(settings, self.built)
        copied = self.built.params

        def train() -> Iterator[nnx.State]:
            with Progress("copying", settings.bc_updates) as progress:
                report = self.record.updates("bc_policy", settings.bc_updates, progress)
                for params in bc.clone(cloning, self.built.params, clone_key, report):
                    yield params.trained

        epochs = copied_epochs(
            Shelf(), recipe, copied.trained, train, self.folder, self.record.counts, source, settings.bc_from
        )
        for epoch in epochs:
            copied = copied._replace(trained=epoch.trained)
            self._save(epoch.phase, copied, copying=recipe, counts=epoch.counts, position=epoch.position)
            yield epoch.phase, copied
        if settings.arm == "bc":
            return
        arm = recipes.make_arm(settings, self.built.policy, play, source)
        with Progress("updating", settings.updates) as progress:
            report = self.record.updates(settings.arm, settings.updates, progress)
            signals = functools.partial(self.record.signals, settings.arm)
            options = recipes.update_options(settings)
            rounds = improve(arm, copied, cloning, options, update_key, report, signals)
            for number, params in enumerate(rounds, start=1):
                phase = f"{settings.arm}_r{number}_policy"
                self._save(phase, params)
                yield phase, params

    def _save(self, phase: str, params: Params, **more: Any) -> None:
        self.policies.save(phase, params.trained, about_policy(self.settings, self.built.source, **more))

    def _baselines(self) -> Outcomes:
        """Every row that needs no model."""
        settings = self.settings
        with Progress("measuring baselines", 3) as progress:
            random = baselines.random_valid(self.splits, settings.budgets, MACHINE)
            progress.update()
            start_solved = baselines.solved_at_start(random)
            rows = [baselines.do_nothing(start_solved, settings.budgets), random]
            rows.append(baselines.oracle_reference(self.splits, settings.budgets, start_solved, MACHINE))
            progress.update()
            found, executions = baselines.oracle_search(self.splits, settings.budgets, settings.oracle_width, MACHINE)
            rows.append(found)
            progress.update()
        programs = ", ".join(f"{split} {count:,.0f}" for split, count in executions.items())
        self.folder.log(f"baselines: programs that the oracle's search ran for a task: {programs}")
        return Outcomes.concatenate(rows)

    @property
    def _placement(self) -> Placement:
        return cast(Placement, self.settings.placement)

    def _diagnostic_tasks(self) -> Any:
        return chunks(self.splits[DIAGNOSTIC_SPLIT])[0][1]

    def _visited(self, roll: Roll) -> StateSet:
        tasks = self._diagnostic_tasks()
        budget = jnp.full((CHUNK, len(self.settings.budgets)), BUDGET, jnp.int32)
        episodes = roll(tasks, budget, jnp.arange(CHUNK))
        return visited_states(tasks, episodes, budget[:, :1], MACHINE, self._placement)

    def _write_tables(self, measured: list[Outcomes], results: dict[str, Any]) -> None:
        outcomes = Outcomes.concatenate(measured)
        self.folder.write_csv("outcomes.csv", OUTCOMES_COLUMNS, outcomes.rows())
        self.folder.write_csv("metrics.csv", METRICS_COLUMNS, metrics_from_outcomes(outcomes))
        self.folder.write_json("results.json", {**summary(outcomes), **results, "counts": self.record.counts})

    def _says(self, outcomes: Outcomes) -> str:
        rows = outcomes.select(mode="learned")
        return f"solved {np.mean(rows.solved):.1%} of {len(rows)} episodes in the learned mode, over all budgets"
