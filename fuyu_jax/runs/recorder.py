"""Collects what training reports into the rows of `train_log.csv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.progress import Progress
from fuyu_jax.runs.tables import TRAIN_LOG_COLUMNS

TRAIN_LOG = "train_log.csv"
ROWS_A_PHASE = 50
COUNTED = {"states": "rollout decisions", "executions": "VM executions", "oracle_labels": "oracle labels"}


class Recorder:
    """Writes training's metrics: means over stretches of updates, signals and diagnostics as they come.

    Metrics stay on the device until a row is due, so that logging does not hold training up.

    Attributes:
      counts: what training used so far: updates, tokens without padding, decisions of rollouts.
    """

    def __init__(self, folder: RunFolder, watch: Callable[[], None] = lambda: None) -> None:
        """Rows go to the folder's train log; after each, `watch` is called."""
        self._folder, self._watch = folder, watch
        self.counts: Counter[str] = Counter()

    def updates(self, phase: str, total: int, progress: Progress) -> _Updates:
        """A function to call with the number and metrics of each of a phase's `total` updates."""
        return _Updates(self, phase, total, progress)

    def signals(self, phase: str, update: int, metrics: dict[str, jax.Array]) -> None:
        """A row of process signals of rollouts made before an update."""
        row = {name: float(value) for name, value in metrics.items()}
        for name, what in COUNTED.items():
            self.counts[what] += int(row.get(name, 0))
        self.row(phase, "signals", update, **row)

    def diagnostics(self, phase: str, state_set: str, metrics: dict[str, jax.Array]) -> None:
        """A row of head accuracies on a fixed set of states."""
        self.row(phase, "diagnostics", None, state_set=state_set, **{k: float(v) for k, v in metrics.items()})

    def row(self, phase: str, kind: str, update: int | None, **cells: Any) -> None:
        """Append one row."""
        row = {"phase": phase, "kind": kind, "update": update, **cells}
        self._folder.append_csv(TRAIN_LOG, TRAIN_LOG_COLUMNS, [row])
        self._watch()


class _Updates:
    """Averages metrics over stretches of updates and shows progress."""

    def __init__(self, recorder: Recorder, phase: str, total: int, progress: Progress) -> None:
        self._recorder, self._phase, self._progress = recorder, phase, progress
        self._every = max(1, total // ROWS_A_PHASE)
        self._total = total
        self._waiting: list[dict[str, jax.Array]] = []

    def __call__(self, number: int, metrics: dict[str, jax.Array]) -> None:
        self._waiting.append(metrics)
        due = number % self._every == 0 or number == self._total
        if not due:
            self._progress.update()
            return
        host = jax.device_get(self._waiting)
        self._recorder.counts["training tokens"] += sum(int(row["tokens"]) for row in host)
        self._recorder.counts["updates"] += len(host)
        means = {name: float(np.mean([row[name] for row in host])) for name in metrics}
        self._recorder.row(self._phase, "update", number, **means)
        self._progress.update(loss=means["loss"])
        self._waiting = []
