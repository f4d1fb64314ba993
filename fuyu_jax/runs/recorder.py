"""Collects what training reports into the rows of `train_log.csv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fuyu_jax.learn.arms.bc import Report
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.progress import Progress
from fuyu_jax.runs.tables import TRAIN_LOG_COLUMNS

TRAIN_LOG = "train_log.csv"
ROWS_A_PHASE = 50
COUNTED = {"states": "rollout decisions", "executions": "VM executions", "oracle_labels": "oracle labels"}


class RecorderState(NamedTuple):
    """What a recorder knew at some moment.

    Attributes:
      counts: as the recorder's.
      waiting: metrics of the updates since the last row, still on the device.
      size: bytes of the train log.
    """

    counts: dict[str, int]
    waiting: tuple[Mapping[str, Any], ...]
    size: int

    def to_json(self) -> dict[str, Any]:
        """The state as JSON data; numbers are text, as JSON has no infinity."""
        waiting = [{name: repr(float(value)) for name, value in row.items()} for row in jax.device_get(self.waiting)]
        return {"counts": self.counts, "waiting": waiting, "size": self.size}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecorderState:
        """The state that `to_json` described, to the last bit."""
        waiting = tuple({name: float(text) for name, text in row.items()} for row in data["waiting"])
        return cls(dict(data["counts"]), waiting, data["size"])


class Recorder:
    """Writes training's metrics: means over stretches of updates, signals and diagnostics as they come.

    Metrics stay on the device until a row is due, so that logging does not hold training up.

    Attributes:
      counts: what training used so far: updates, tokens without padding, decisions of rollouts.
    """

    def __init__(self, folder: RunFolder, watch: Callable[[], None] = lambda: None) -> None:
        """Rows go to the folder's train log; after each, `watch` is called."""
        self._folder, self._watch = folder, watch
        self._waiting: list[Mapping[str, Any]] = []
        self.counts: Counter[str] = Counter()

    @property
    def state(self) -> RecorderState:
        """What it knows now."""
        return RecorderState(dict(self.counts), tuple(self._waiting), self._folder.size(TRAIN_LOG))

    def go_back(self, state: RecorderState) -> None:
        """Knows what it knew then, and takes the train log back to its rows of then.

        Raises:
          UserError: where the train log has fewer.
        """
        self._folder.cut(TRAIN_LOG, state.size)
        self.counts.clear()
        self.counts.update(state.counts)
        self._waiting = list(state.waiting)

    def updates(self, phase: str, total: int, progress: Progress) -> Report:
        """A function to call with the number and metrics of each of a phase's `total` updates."""
        every = max(1, total // ROWS_A_PHASE)

        def report(number: int, metrics: Mapping[str, jax.Array]) -> None:
            self._waiting.append(metrics)
            if number % every and number != total:
                progress.update()
                return
            means = self._flush()
            self.row(phase, "update", number, **means)
            progress.update(loss=means["loss"])

        return report

    def signals(self, phase: str, update: int, metrics: dict[str, jax.Array]) -> None:
        """A row of process signals of rollouts made before an update."""
        row = {name: float(value) for name, value in metrics.items()}
        for name, what in COUNTED.items():
            self.counts[what] += int(row.get(name, 0))
        self.row(phase, "signals", update, **row)

    def diagnostics(self, phase: str, state_set: str, metrics: dict[str, jax.Array]) -> None:
        """A row of head accuracies on a fixed set of states."""
        self.row(phase, "diagnostics", None, state_set=state_set, **{k: float(v) for k, v in metrics.items()})

    def _flush(self) -> dict[str, float]:
        """Means of the waiting metrics, which are counted and wait no longer."""
        rows = jax.device_get(self._waiting)
        self._waiting = []
        self.counts["training tokens"] += sum(int(row["tokens"]) for row in rows)
        self.counts["updates"] += len(rows)
        # In float64, in which metrics that were saved and restored are as well.
        return {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0]}

    def row(self, phase: str, kind: str, update: int | None, **cells: Any) -> None:
        """Append one row."""
        row = {"phase": phase, "kind": kind, "update": update, **cells}
        self._folder.append_csv(TRAIN_LOG, TRAIN_LOG_COLUMNS, [row])
        self._watch()
