"""The main job: copy the oracle, run a decision update, measure both against every baseline, report."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from flax import nnx

from fuyu_jax import recipes
from fuyu_jax.deployment import Actor, Roles, ScoredPolicy
from fuyu_jax.evaluate import baselines
from fuyu_jax.evaluate.diagnosis import Diagnosis
from fuyu_jax.evaluate.episodes import record_episodes
from fuyu_jax.evaluate.measure import EVALUATION_SEED, Labels, chunks, greedy, measure_policy, pass_at
from fuyu_jax.evaluate.metrics import BUDGET, COPIED_PHASE, metrics_from_outcomes, summary
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.learn.arms import bc
from fuyu_jax.learn.arms.bc import Cloning, Report
from fuyu_jax.learn.demos import DemonstrationSource, TaskSource
from fuyu_jax.learn.improvement import improve
from fuyu_jax.learn.training import Diverged, TrainingPoint, start_training
from fuyu_jax.policy import Params, Play, make_play
from fuyu_jax.runs.arguments import parse_command
from fuyu_jax.runs.errors import Interrupted, RunStopped, UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.interrupts import Interrupts
from fuyu_jax.runs.manifest import check_data, make_manifest, peak_memory
from fuyu_jax.runs.memory import check_memory
from fuyu_jax.runs.points import BASELINES, Points, Stage
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
from fuyu_jax.runs.recorder import TRAIN_LOG, Recorder
from fuyu_jax.runs.report import EPISODES, REPORT, headline_text, write_report
from fuyu_jax.runs.saver import Saver
from fuyu_jax.runs.settings import PROGRAM, PilotSettings
from fuyu_jax.runs.shared_bc import Recipe, Shelf, copied_epochs, copying_recipe, epochs_of_run, lasting, read_epochs
from fuyu_jax.runs.tables import METRICS_COLUMNS, OUTCOMES_COLUMNS
from fuyu_jax.runs.tensorboard import EventFiles, check_tensorboard
from vm.behaviour import EVALUATION_SPLITS
from vm.oracle import Placement
from vm.streams import split_manifest
from vm.tasks import Tasks, make_tasks
from vm.types import THREEFRY

PASS_SAMPLES = 8
DIAGNOSTIC_SPLIT = "val_mixed"
MANIFEST = "dataset_manifest.json"
Actors = Callable[[str, Params], Actor]  # of a phase and its parameters


def main(argv: Sequence[str]) -> None:
    """Run what a command line asks for, and print of each run the headline table and where its report is."""
    asked = parse_command(argv)
    with Interrupts() as interrupts:
        for settings in asked.runs:
            if asked.resume and (report := asked.resume / REPORT).exists():
                print(f"the run in {asked.resume} is finished; its report is {report}")
                continue
            with silence(settings.quiet):
                with interrupts.at_once():
                    pilot = Pilot.prepare(settings, interrupts, asked.resume)
                with contextlib.closing(pilot.folder):
                    report = pilot.run()
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
      recipe: what decides the copied policies.
      splits: evaluation tasks.
      saver: how far the run is, saved for `--resume`.
      interrupts: tells of signals.
    """

    settings: PilotSettings
    folder: RunFolder
    policies: PolicyFolder
    record: Recorder
    built: BuiltPolicy
    recipe: Recipe
    splits: dict[str, Tasks]
    saver: Saver
    interrupts: Interrupts

    @classmethod
    def prepare(cls, settings: PilotSettings, interrupts: Interrupts, resume: Path | None = None) -> Pilot:
        """Load the model, claim the folder, make the evaluation tasks. What the user got wrong shows before writing.

        Args:
          settings: of the run.
          interrupts: tells of signals.
          resume: the folder of a run that stopped, which is taken back to its newest point; None for a new run.
        """
        if resume is None:
            RunFolder.check_free(settings.out)
        check_memory(settings)
        if settings.tensorboard:
            check_tensorboard()
        built = build_policy(settings)
        recipe = copying_recipe(settings, built)
        if settings.bc_from:
            epochs_of_run(Path(settings.bc_from), recipe, built.params.trained)
        if resume is None:
            folder = RunFolder.create(settings.out, f"{settings.arm}_{settings.preset}_s{settings.seed}")
        else:
            folder = RunFolder.reopen(resume)
        policies = PolicyFolder.of_run(folder.path, settings.checkpoint_dir)
        if resume is None:
            try:
                policies.claim()
            except UserError:
                folder.give_up()
                raise
            folder.write_json("config.json", settings.to_dict())
        with _told_how_to_go_on(folder):
            with Progress("making tasks", len(EVALUATION_SPLITS)) as progress:
                splits = {}
                for split in EVALUATION_SPLITS:
                    splits[split] = make_tasks(
                        split, EVALUATION_SEED, settings.eval_tasks, settings.start, settings.public, settings.hidden
                    )
                    progress.update()
            manifests = {split: split_manifest(tasks) for split, tasks in splits.items()}
            if folder.size(MANIFEST):
                check_data(folder.path / MANIFEST, manifests)
            else:
                seeds = {
                    "evaluation tasks": EVALUATION_SEED,
                    "initialisation, train stream and sampling": settings.seed,
                }
                folder.write_json(MANIFEST, make_manifest(manifests, seeds) | {"model": built.source})
            folder.log(f"prepared {sum(map(len, splits.values()))} evaluation tasks for {settings.command()}")
            record = Recorder(folder, EventFiles(folder.path).follow) if settings.tensorboard else Recorder(folder)
            points = Points.of_run(policies, settings, built.params, recipe)
            saver = Saver(points, folder, policies, record, settings.save_every, interrupts)
            if resume is not None:
                saver.go_on()
            return cls(settings, folder, policies, record, built, recipe, splits, saver, interrupts)

    def run(self) -> Path:
        """Train and measure every phase, write the tables and the report, whose path is returned.

        Raises:
          Interrupted: at a signal, with the command to go on with.
          RunStopped: where training makes no sense any more.
        """
        started = time.monotonic()
        with _told_how_to_go_on(self.folder):
            self._measure_baselines()
            play = make_play(self.built.reader, self.settings.no_repeat)
            actors = self._actors(play)
            diagnosis = self._diagnosis(play)
            for phase, params in self._guarded(play):
                with self.interrupts.at_once():
                    self._measure(phase, params, actors, diagnosis)
            with self.interrupts.at_once():
                self._write_episodes(actors)
            self.saver.check()
            minutes, memory = (time.monotonic() - started) / 60, peak_memory()
            self.folder.log(f"finished: training and measuring took {minutes:.1f} minutes, {memory:.2f} GiB at most")
            with self.interrupts.at_once():
                return write_report(self.folder.path)

    def _actors(self, play: Play) -> Actors:
        """Who acts where a phase is measured: its policy alone, or as the scorer of what the copied policy proposes."""

        def alone(phase: str, params: Params) -> Actor:
            return Actor(self.built.reader, play, params)

        if self.settings.deploy == "policy":
            return alone
        scored = ScoredPolicy.of(self.built.reader)
        scored_play = make_play(scored, self.settings.no_repeat)

        def as_scorer(phase: str, params: Params) -> Actor:
            if phase.startswith(COPIED_PHASE):
                return alone(phase, params)
            return Actor(scored, scored_play, Roles(self._params_of(COPIED_PHASE), params))

        return as_scorer

    def _write_episodes(self, actors: Actors) -> None:
        """Episodes of the last policy, step by step."""
        phase = self.saver.measured.phases[-1]
        lanes = len(self.settings.budgets)
        policy, play, params = actors(phase, self._params_of(phase))
        shown = record_episodes(policy, play, params, self.splits, lanes, phase)
        self.folder.write_json_lines(EPISODES, shown)

    def _measure(self, phase: str, params: Params, actors: Actors, diagnosis: Diagnosis) -> None:
        """Everything that is measured of one phase, written."""
        measured, (_, play, acting) = self.saver.measured, actors(phase, params)
        with Progress(f"measuring {phase}", len(self.splits)) as progress:
            labels = Labels(self.settings.arm, phase, self.settings.seed)
            outcomes = measure_policy(
                greedy(play, acting),
                self.splits,
                self.settings.budgets,
                labels,
                advance=lambda split: progress.update(),
            )
        if phase == COPIED_PHASE:
            diagnosis.refer_to(params)
        for name, row in diagnosis.rows(params):
            self.record.diagnostics(phase, name, row)
        if diagnosis.reference:
            lanes = len(self.settings.budgets)
            rates = pass_at(play, acting, self.splits, BUDGET, PASS_SAMPLES, lanes, self.settings.seed)
            measured.pass_at_8[phase] = rates
        measured.add(phase, outcomes)
        self._write_tables()
        self.folder.log(f"{phase}: {self._says(outcomes)}")

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
        """Train, and hand out the name and parameters of each phase that is not measured yet, as it is reached."""
        settings, begin = self.settings, self.saver.begin
        run_key = jax.random.key(settings.seed, impl=THREEFRY)
        clone_key, update_key = (jax.random.fold_in(run_key, purpose) for purpose in (CLONING, UPDATING))
        source = recipes.demonstrations(settings)
        cloning = recipes.make_cloning(settings, self.built.policy, source)
        if begin is None or begin.stage == "copying":
            yield from self._copy(cloning, source, clone_key)
        if settings.arm == "bc":
            return
        arm = recipes.make_arm(settings, self.built.policy, play, source)
        training = self._enter("updating", {"demonstrations": source, "rollouts": arm.tasks})
        first = training.parts if training else 0
        with Progress("updating", settings.updates - (training.done if training else 0)) as progress:
            report = self._report(settings.arm, settings.updates, progress)
            signals = functools.partial(self.record.signals, settings.arm)
            options = recipes.update_options(settings)
            rounds = improve(
                arm,
                self._params_of(COPIED_PHASE),
                cloning,
                options,
                update_key,
                report,
                signals,
                training,
                self.saver.at_point,
            )
            for number, params in enumerate(rounds, start=first + 1):
                phase = f"{settings.arm}_r{number}_policy"
                self._save(phase, params)
                yield phase, params

    def _copy(self, cloning: Cloning, source: DemonstrationSource, key: jax.Array) -> Iterator[tuple[str, Params]]:
        """The epochs of copying, found or trained."""
        settings, like = self.settings, self.built.params.trained
        training = self._enter("copying", {"demonstrations": source})
        earlier = None
        if training:
            log = self.folder.path / TRAIN_LOG
            earlier = read_epochs(self.policies, log, lasting(self.recipe), like, training.parts)

        def train() -> Iterator[nnx.State]:
            with Progress("copying", settings.bc_updates - (training.done if training else 0)) as progress:
                report = self._report(COPIED_PHASE, settings.bc_updates, progress)
                for params in bc.clone(cloning, self.built.params, key, report, training, self.saver.at_point):
                    yield params.trained

        shelf = Shelf() if self.saver.unchanged else None
        epochs = copied_epochs(
            shelf, self.recipe, like, train, self.folder, self.record.counts, source, settings.bc_from, earlier
        )
        for epoch in itertools.islice(epochs, len(earlier or ()), None):
            copied = self.built.params._replace(trained=epoch.trained)
            self._save(epoch.phase, copied, copying=self.recipe, counts=epoch.counts, position=epoch.position)
            yield epoch.phase, copied

    def _enter(self, stage: Stage, sources: dict[str, TaskSource]) -> TrainingPoint | None:
        """Begins a stage of training; where the run goes on inside it, moves the sources of tasks to its point."""
        self.saver.stage, self.saver.sources = stage, sources
        begin = self.saver.begin
        if begin is None or begin.stage != stage or not begin.positions:
            return None
        for name, source in sources.items():
            source.move_to(begin.positions[name])
        return begin.training

    def _report(self, phase: str, total: int, progress: Progress) -> Report:
        """What training calls after each update: it records, and stops where a signal asked to."""
        record = self.record.updates(phase, total, progress)

        def report(number: int, metrics: dict[str, jax.Array]) -> None:
            record(number, metrics)
            self.saver.after_update()

        return report

    def _params_of(self, phase: str) -> Params:
        """A phase's policy, as it was saved."""
        return self.built.params._replace(trained=self.policies.load(phase, self.built.params.trained, {}).tree)

    def _save(self, phase: str, params: Params, **more: Any) -> None:
        """Saves a phase's policy, and the point that it was reached at."""
        self.policies.save(phase, params.trained, about_policy(self.settings, self.built.source, **more))
        self.saver.save()

    def _measure_baselines(self) -> None:
        """Every row that needs no model."""
        settings, measured = self.settings, self.saver.measured
        if measured.phases:
            self._write_tables()  # without what was measured after the point that the run goes on from
            return
        with self.interrupts.at_once(), Progress("measuring baselines", 3) as progress:
            rows, executions = baselines.measure_all(
                self.splits, settings.budgets, settings.oracle_width, MACHINE, progress.update
            )
        programs = ", ".join(f"{split} {count:,.0f}" for split, count in executions.items())
        self.folder.log(f"baselines: programs that the oracle's search ran for a task: {programs}")
        measured.add(BASELINES, rows)
        self._write_tables()
        self.saver.at_point(TrainingPoint(start_training(self.built.params)))

    def _diagnosis(self, play: Play) -> Diagnosis:
        """Diagnoses on the states of the first evaluation tasks, against the copied policy if it was measured."""
        tasks = chunks(self.splits[DIAGNOSTIC_SPLIT])[0][1]
        placement = cast(Placement, self.settings.placement)
        lanes = len(self.settings.budgets)
        diagnosis = Diagnosis(self.built.reader, play, tasks, placement, lanes)
        if COPIED_PHASE in self.saver.measured.phases:
            diagnosis.refer_to(self._params_of(COPIED_PHASE))
        return diagnosis

    def _write_tables(self) -> None:
        measured = self.saver.measured
        outcomes = Outcomes.concatenate(measured.outcomes)
        self.folder.write_csv("outcomes.csv", OUTCOMES_COLUMNS, outcomes.rows())
        self.folder.write_csv("metrics.csv", METRICS_COLUMNS, metrics_from_outcomes(outcomes))
        results = {**summary(outcomes), "pass_at_8": measured.pass_at_8, "counts": self.record.counts}
        self.folder.write_json("results.json", results)

    def _says(self, outcomes: Outcomes) -> str:
        rows = outcomes.select(mode="learned")
        return f"solved {np.mean(rows.solved):.1%} of {len(rows)} episodes in the learned mode, over all budgets"


@contextlib.contextmanager
def _told_how_to_go_on(folder: RunFolder) -> Iterator[None]:
    """Inside, a signal ends with the command that goes on with the run."""
    try:
        yield
    except Interrupted as error:
        folder.log("interrupted")
        command = shlex.join(["python", PROGRAM, "--resume", str(folder.path)])
        raise Interrupted(error.number, f"interrupted; go on with: {command}") from None
