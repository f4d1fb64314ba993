"""Behaviour cloning done once: its policies are shared by all runs that would copy alike, under `runs/.bc/HASH`.

An entry is laid out like a run: `recipe.json`, `train_log.csv` and `checkpoints/` with the policy after each epoch. It
is written beside its place and moved there whole, so it is never seen half done; of two runs that make the same one
at once the second keeps the first's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx

from fuyu_jax.evaluate.metrics import COPIED_PHASE
from fuyu_jax.learn.demos import TaskSource
from fuyu_jax.runs.checkpoints import DamagedCheckpoint, first_difference, tree_digest
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.manifest import SOURCE_ROOT, package_versions
from fuyu_jax.runs.policies import BuiltPolicy, PolicyFolder, read_config
from fuyu_jax.runs.recorder import TRAIN_LOG
from fuyu_jax.runs.settings import PLACES, PilotSettings
from fuyu_jax.runs.tables import TRAIN_LOG_COLUMNS, read_csv, to_csv, write_atomically

RECIPE = "recipe.json"
SHELF = Path("runs") / ".bc"
# Settings that copying does not depend on, or that the recipe states in another way. All others are part of it.
NOT_COPYING = frozenset({
    "arm", "preset", "recipe", "model", *PLACES, "updates", "rounds", "rollout_tasks", "group", "rollout_batch",
    "states_per_rollout", "reuse", "update_lr", "kl_weight", "anchor_weight", "policy_weight", "bc_replay",
    "stop_caution", "reward", "shaping", "credit", "norm_std", "drop_zero_spread", "shuffle_signal", "pairs",
    "dpo_beta", "likelihood_weight", "awr_actions", "awr_samples", "awr_nats", "search_budget", "deploy", "no_repeat",
    "eval_tasks", "budgets", "oracle_width",
})  # fmt: skip

Recipe = dict[str, Any]
Rows = list[dict[str, str]]


class CopiedEpoch(NamedTuple):
    """What one epoch of copying left.

    Attributes:
      phase: the policy's name, as in `bc_policy_e1`.
      trained: its trained parameters.
      rows: what the epoch added to `train_log.csv`.
      counts: what the epoch used, as in `Recorder.counts`.
      position: which demonstrations come next.
    """

    phase: str
    trained: nnx.State
    rows: Rows
    counts: dict[str, int]
    position: dict[str, int]


def copying_recipe(settings: PilotSettings, built: BuiltPolicy) -> Recipe:
    """Everything that decides the copied policies: equal recipes give equal ones, on the same kind of device."""
    return {
        "settings": {name: value for name, value in settings.to_dict().items() if name not in NOT_COPYING},
        "model": {name: value for name, value in built.source.items() if name != "name"},
        "initial_parameters": tree_digest(built.params.trained),
        "tokens": tree_digest(built.policy.tokens),
        "code": code_digest(),
        "packages": package_versions(),
        "devices": [f"{device.platform} {device.device_kind}" for device in jax.devices()],
    }


def copied_phases(epochs: int) -> list[str]:
    """The names of the policies after each epoch of copying."""
    return [*(f"{COPIED_PHASE}_e{number}" for number in range(1, epochs)), COPIED_PHASE]


def recipe_hash(recipe: Recipe) -> str:
    """The name of a recipe's entry: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:32]


@functools.cache  # of the code that this process runs, whatever becomes of the files
def code_digest(root: Path = SOURCE_ROOT) -> str:
    """SHA-256 of the source of both packages: with other code the same settings may train another policy."""
    digest = hashlib.sha256()
    for path in sorted(path for package in ("vm", "fuyu_jax") for path in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def lasting(recipe: Recipe) -> Recipe:
    """A recipe without what may change between two runs of it: code, packages and devices."""
    return {name: recipe[name] for name in ("settings", "model", "initial_parameters", "tokens")}


def read_epochs(
    policies: PolicyFolder, log: Path, recipe: Recipe, like: nnx.State, count: int | None = None
) -> list[CopiedEpoch]:
    """The epochs of copying that a run or an entry holds.

    Args:
      policies: its checkpoints.
      log: its `train_log.csv`.
      recipe: with what each policy's own must agree.
      like: trained parameters of the same structure.
      count: how many of the epochs are read; None reads all.

    Raises:
      DamagedCheckpoint: where a policy or the log is missing or damaged.
      UserError: where a policy was made from another recipe.
    """
    settings, read = recipe["settings"], []
    try:
        rows = copying_rows(log)
    except (OSError, ValueError, KeyError) as error:
        raise DamagedCheckpoint(f"{log} cannot be read ({error}); copy the run again.") from None
    for number, phase in enumerate(copied_phases(settings["bc_epochs"])[:count], start=1):
        restored = policies.load(phase, like, {"copying": recipe})
        before, last = (settings["bc_updates"] * n // settings["bc_epochs"] for n in (number - 1, number))
        mine = [row for row in rows if before < int(row["update"]) <= last]
        about = restored.metadata
        read.append(CopiedEpoch(phase, restored.tree, mine, about["counts"], about["position"]))
    return read


def copying_rows(log: Path) -> Rows:
    """The rows of a train log that tell of updates of copying."""
    return [row for row in read_csv(log) if row["phase"] == COPIED_PHASE and row["kind"] == "update"]


def epochs_of_run(run: Path, recipe: Recipe, like: nnx.State) -> list[CopiedEpoch]:
    """The copied policies of another run, for `--bc_from`.

    Code, packages and devices may differ from the recipe's; settings, model and initial parameters may not.

    Raises:
      UserError: where the folder is no run, lacks its copied policies, or made them otherwise.
    """
    config = read_config(run)
    if difference := first_difference(config, recipe["settings"]):
        name, there, here = difference
        raise UserError(f"--bc_from: {run} was made with --{name} {there}, but here it is {here}; give the same.")
    policies = PolicyFolder.of_run(run)
    if not policies.path.is_dir() and config.get("checkpoint_dir"):
        policies = PolicyFolder.of_run(run, config["checkpoint_dir"])
    return read_epochs(policies, run / TRAIN_LOG, lasting(recipe), like)


@dataclass(frozen=True)
class Shelf:
    """The folder of shared copied policies.

    Attributes:
      root: where entries are.
    """

    root: Path = SHELF

    def find(self, recipe: Recipe, like: nnx.State) -> list[CopiedEpoch] | None:
        """The epochs of a recipe; None where they are not there. A damaged entry is said, removed and not there."""
        entry = self.root / recipe_hash(recipe)
        if not entry.is_dir():
            return None
        try:
            return read_epochs(PolicyFolder.of_run(entry), entry / TRAIN_LOG, recipe, like)
        except DamagedCheckpoint as error:
            print(f"copying anew: {error}", file=sys.stderr)
            shutil.rmtree(entry, ignore_errors=True)
            return None

    def add(self, recipe: Recipe, epochs: Iterable[CopiedEpoch]) -> Iterator[CopiedEpoch]:
        """Hands epochs on as they come, and puts them on the shelf when the last one is there, before handing it on.

        A shelf that cannot be written is said, and costs the run nothing.
        """
        entry = self.root / recipe_hash(recipe)
        draft = entry.with_name(f".{entry.name}.{os.getpid()}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        rows: Rows = []
        phases = copied_phases(recipe["settings"]["bc_epochs"])
        writable = True
        try:
            for epoch in epochs:
                rows += epoch.rows
                try:
                    if writable:
                        about = {"copying": recipe, "counts": epoch.counts, "position": epoch.position}
                        PolicyFolder.of_run(draft).save(epoch.phase, epoch.trained, about)
                    if writable and epoch.phase == phases[-1]:
                        write_atomically(draft / RECIPE, (json.dumps(recipe, indent=1) + "\n").encode())
                        write_atomically(draft / TRAIN_LOG, to_csv(TRAIN_LOG_COLUMNS, rows).encode())
                        _publish(draft, entry)
                except (UserError, OSError) as error:
                    writable = False
                    print(f"copied policies are not shared: {error}", file=sys.stderr)
                yield epoch
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _publish(draft: Path, entry: Path) -> None:
    try:
        os.rename(draft, entry)
    except OSError:
        if not entry.is_dir():  # else another run was first, with the same policies
            raise


def copied_epochs(
    shelf: Shelf | None,
    recipe: Recipe,
    like: nnx.State,
    train: Callable[[], Iterator[nnx.State]],
    folder: RunFolder,
    counts: Counter[str],
    demos: TaskSource,
    bc_from: str | None = None,
    earlier: Sequence[CopiedEpoch] | None = None,
) -> Iterator[CopiedEpoch]:
    """The epochs of copying, trained only where neither `bc_from` nor the shelf has them.

    Either way the run's train log, counts and demonstrations are afterwards as if it had trained.

    Args:
      shelf: where copied policies are shared; None where they are not, as two versions of the code made them.
      recipe: what decides them.
      like: the parameters before training.
      train: trains, and hands out the trained parameters after each epoch.
      folder: the run's, to whose train log `train` writes.
      counts: what the run used so far, which `train` counts on; nothing before copying.
      demos: where `train` takes demonstrations from.
      bc_from: a run whose copied policies are taken.
      earlier: the first epochs of the run's own copying, which `train` goes on with; None where it has not begun.
    """
    found = None
    if earlier is None:
        if bc_from:
            found = epochs_of_run(Path(bc_from), recipe, like)
        elif shelf is not None:
            found = shelf.find(recipe, like)
    if found is None:
        epochs = _trained(recipe, train, folder, counts, demos, earlier or ())
        yield from shelf.add(recipe, epochs) if shelf else epochs
        return
    for epoch in found:
        folder.append_csv(TRAIN_LOG, TRAIN_LOG_COLUMNS, epoch.rows)
        counts.update(epoch.counts)
        demos.move_to(epoch.position)
        yield epoch


def _trained(
    recipe: Recipe,
    train: Callable[[], Iterator[nnx.State]],
    folder: RunFolder,
    counts: Counter[str],
    demos: TaskSource,
    earlier: Sequence[CopiedEpoch],
) -> Iterator[CopiedEpoch]:
    before = sum((Counter(epoch.counts) for epoch in earlier), Counter[str]())
    seen = sum(len(epoch.rows) for epoch in earlier)
    yield from earlier
    for phase, trained in zip(copied_phases(recipe["settings"]["bc_epochs"])[len(earlier) :], train(), strict=True):
        rows = copying_rows(folder.path / TRAIN_LOG)[seen:]
        seen += len(rows)
        yield CopiedEpoch(phase, trained, rows, dict(counts - before), demos.position)
        before = Counter(counts)
