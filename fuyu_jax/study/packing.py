"""The data that a study leaves: small CSV files, from which all of its tables, charts and verdicts are made.

Runs are added one by one, and files come out the same bytes in whatever order that happens. Which task was solved is
kept as the bits of a hexadecimal number, so that the gate can be asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuyu_jax.evaluate.metrics import COPIED_PHASE, at_budget
from fuyu_jax.gate import Panel
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.reading import FinishedRun, read_object, read_run
from fuyu_jax.runs.recorder import TRAIN_LOG
from fuyu_jax.runs.settings import PilotSettings, sees_oracle_labels
from fuyu_jax.runs.tables import METRICS_TEXT, TRAIN_LOG_TEXT, read_table, to_csv, write_atomically
from fuyu_jax.study.plan import PlannedRun

Row = Mapping[str, Any]
COUNTS = ("updates", "training tokens", "rollout decisions", "VM executions", "oracle labels")
COLUMNS = {
    "runs": (
        "run", "regime", "cell", "arm", "seed", "shuffled", "oracle_labels", "phase", "options", "commit", "machine",
        "jax", *COUNTS,
    ),
    "outcomes": ("run", "phase", "split", "k", "tasks", "start_solved", "solved", "false_stop"),
    "metrics": (
        "run", "phase", "mode", "split", "k", "n", "accuracy", "new_solved", "kept_solved", "false_stop_rate",
        "valid_edit_rate", "mean_steps",
    ),
    "training": ("run", "phase", "kind", "state_set", "name", "value"),
}  # fmt: skip
TEXT = ("run", "regime", "cell", "arm", "phase", "options", "commit", "machine", "jax", "split", "start_solved",
        "solved", "false_stop", "mode", "kind", "state_set", "name")  # fmt: skip
EVERY_SPLIT = "learned"  # the mode whose splits are all kept; of the others the pooled rows are
NOT_TRAINING = ("phase", "update", "kind", "state_set")


@dataclass
class StudyData:
    """Rows of each file by run.

    Attributes:
      rows: for each file's name without `.csv`, the rows of each run.
    """

    rows: dict[str, dict[str, list[Row]]] = field(default_factory=lambda: {name: {} for name in COLUMNS})

    @classmethod
    def read(cls, folder: Path) -> StudyData:
        """The data in a folder; none where there are no files.

        Raises:
          UserError: where a file is damaged.
        """
        data = cls()
        for name, columns in COLUMNS.items():
            path = folder / f"{name}.csv"
            try:
                rows = read_table(path, TEXT) if path.exists() else []
            except (OSError, ValueError) as error:
                raise UserError(f"{path} cannot be read ({error}); restore it.") from None
            if rows and tuple(rows[0]) != columns:
                raise UserError(f"{path} has other columns than {', '.join(columns)}; restore it.")
            for row in rows:
                data.rows[name].setdefault(str(row["run"]), []).append(row)
        return data

    def write(self, folder: Path) -> None:
        """Writes all files, runs in the order of their names."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, columns in COLUMNS.items():
            rows = [row for run in sorted(self.rows[name]) for row in self.rows[name][run]]
            write_atomically(folder / f"{name}.csv", to_csv(columns, rows).encode())

    def add(self, planned: PlannedRun, folder: Path) -> None:
        """Takes in a finished run of the plan.

        Raises:
          UserError: where the folder is no finished run, or one with other settings.
        """
        run = read_run(folder)
        check_same(planned, folder, run.config)
        for name, rows in _pack(planned, run).items():
            self.rows[name][planned.name] = rows

    def has(self, planned: PlannedRun) -> bool:
        """Whether the run is there, made with the planned settings."""
        rows = self.rows["runs"].get(planned.name, [])
        return bool(rows) and rows[0]["options"] == planned.settings.command()

    def about(self, run: str) -> Row:
        """The row of `runs.csv` of a run that is there."""
        return self.rows["runs"][run][0]

    def panel(self, runs: Sequence[str], phase: str | None = None) -> Panel:
        """One policy's outcomes over runs that differ in their seed: after its last round, or in another phase.

        Raises:
          ValueError: where the runs measured different tasks.
        """
        ordered = sorted(runs, key=lambda run: int(self.about(run)["seed"]))
        parts = [_Bits.of(self.rows["outcomes"][run], phase or str(self.about(run)["phase"])) for run in ordered]
        for part in parts[1:]:
            if not all(np.array_equal(a, b) for a, b in zip(part[:3], parts[0][:3], strict=True)):
                raise ValueError("its seeds measured different tasks")
        return Panel(
            tuple(int(self.about(run)["seed"]) for run in ordered),
            parts[0].split,
            parts[0].task,
            parts[0].start_solved,
            np.stack([part.solved for part in parts]),
            np.stack([part.false_stop for part in parts]),
        )


def check_same(planned: PlannedRun, folder: Path, config: Mapping[str, Any]) -> None:
    """Refuses a run folder, with this `config.json`, that holds another run than the planned one.

    Raises:
      UserError: then.
    """
    theirs = PilotSettings.from_dict(config).command()
    if theirs != planned.settings.command():
        raise UserError(f"{folder} holds another run than is planned there ({theirs}); move it away.")


class _Bits(NamedTuple):
    """One run's outcomes of one phase: split and task `[N]` in sorted order, and what became of each."""

    split: NDArray[np.str_]
    task: NDArray[np.int64]
    start_solved: NDArray[np.bool_]
    solved: NDArray[np.bool_]
    false_stop: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Row], phase: str) -> _Bits:
        """From the run's rows of `outcomes.csv`."""
        mine = sorted((row for row in rows if row["phase"] == phase), key=lambda row: str(row["split"]))
        sizes = [int(row["tasks"]) for row in mine]
        bits = {
            name: np.concatenate([unpack_bits(row[name], size) for row, size in zip(mine, sizes, strict=True)])
            for name in ("start_solved", "solved", "false_stop")
        }
        split = np.repeat(np.array([str(row["split"]) for row in mine]), sizes)
        return cls(split, np.concatenate([np.arange(size) for size in sizes]), **bits)


def pack_bits(values: NDArray[np.bool_]) -> str:
    """Bools `[N]` as hexadecimal digits, the first in the highest bit of the first digit, filled up with zeros."""
    return np.packbits(values).tobytes().hex()


def unpack_bits(text: str, count: int) -> NDArray[np.bool_]:
    """The first `count` bools that `pack_bits` wrote."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=count).astype(np.bool_)


def _pack(planned: PlannedRun, run: FinishedRun) -> dict[str, list[Row]]:
    """The rows of one run for each file."""
    name, phase = planned.name, run.last_phase or COPIED_PHASE
    phases = dict.fromkeys((COPIED_PHASE, phase))
    origin, counts = run.origin(), read_object(run.folder / "results.json")["counts"]
    about = {
        "run": name,
        "regime": planned.regime,
        "cell": planned.cell,
        "arm": run.arm,
        "seed": run.seed,
        "shuffled": bool(run.config["shuffle_signal"]),
        "oracle_labels": sees_oracle_labels(run.config),
        "phase": phase,
        "options": planned.settings.command(),
        "commit": origin["commit"],
        "machine": origin["machine"],
        "jax": origin["packages"].get("jax"),
        **{count: counts.get(count) for count in COUNTS},
    }
    final = at_budget(run.policy)
    outcomes: list[Row] = []
    for (at, split), rows in final.groups("phase", "split"):
        if at in phases:
            rows = rows.take(np.argsort(rows.task))
            bits = {column: pack_bits(getattr(rows, column)) for column in ("start_solved", "solved", "false_stop")}
            outcomes.append({"run": name, "phase": at, "split": split, "k": rows.k[0], "tasks": len(rows), **bits})
    metrics: list[Row] = [
        {"run": name, **{column: row[column] for column in COLUMNS["metrics"][1:]}}
        for row in read_table(run.folder / "metrics.csv", METRICS_TEXT)
        if row["arm"] == run.arm and row["phase"] in phases and (row["mode"] == EVERY_SPLIT or row["split"] == "all")
    ]
    log = read_table(run.folder / TRAIN_LOG, TRAIN_LOG_TEXT)
    return {"runs": [about], "outcomes": outcomes, "metrics": metrics, "training": _training(name, run, log, phases)}


def _training(name: str, run: FinishedRun, log: Sequence[Row], phases: Mapping[str, Any]) -> list[Row]:
    """Diagnoses of the phases, and the signals of the update's first and last turns, as one row a number."""
    rows: list[Row] = []

    def add(phase: str, kind: str, state_set: str, cells: Mapping[str, Any]) -> None:
        rows.extend(
            {"run": name, "phase": phase, "kind": kind, "state_set": state_set, "name": key, "value": value}
            for key, value in cells.items()
            if key not in NOT_TRAINING and value is not None
        )

    for row in log:
        if row["kind"] == "diagnostics" and row["phase"] in phases:
            add(row["phase"], "diagnostics", row["state_set"], row)
    signals = [row for row in log if row["kind"] == "signals" and row["phase"] == run.arm]
    if signals:
        tenth = max(1, len(signals) // 10)
        for part, some in (("first", signals[:1]), ("last tenth", signals[-tenth:])):
            add(run.arm, "signals", part, {key: _mean([row[key] for row in some]) for key in some[0]})
    return rows


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return float(np.mean(numbers)) if numbers else None
