"""The train log as TensorBoard event files, for whoever watches a run from a browser."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.recorder import TRAIN_LOG
from fuyu_jax.runs.tables import TRAIN_LOG_TEXT, Row, read_table

FOLDER = "tensorboard"
PACKAGE = "tensorboardX"


def check_tensorboard() -> None:
    """Refuses where event files cannot be written.

    Raises:
      UserError: where the package is missing.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise UserError(
            f"--tensorboard is 1 but the package {PACKAGE} is not installed; "
            "install it with pip install 'fuyu-jax[tensorboard]', or leave the option out."
        )


class EventFiles:
    """An event file in a run's folder that follows its `train_log.csv`, wherever its rows come from.

    A run that goes on in its folder begins another file with all rows and tells TensorBoard to forget what came before,
    so that no point is there twice. Rows are on disk when `follow` returns: the writer that most use hands them to a
    thread, and loses them when the run is killed.
    """

    def __init__(self, run: Path) -> None:
        """Nothing is written yet."""
        self._run, self._written = run, 0
        self._writer: Any = None

    def follow(self) -> None:
        """Writes the rows that came since the last call, as scalars `KIND/PHASE/COLUMN` or `diagnostics/STATES/COLUMN`.

        The step of an update, and of the signals before it, is its number within its phase; that of diagnostics is the
        number of the phase.
        """
        rows = read_table(self._run / TRAIN_LOG, TRAIN_LOG_TEXT)
        phases = list(dict.fromkeys(row["phase"] for row in rows if row["kind"] == "diagnostics"))
        for row in rows[self._written :]:
            step = phases.index(row["phase"]) + 1 if row["kind"] == "diagnostics" else row["update"]
            self._write(step, scalars(row))
        self._written = len(rows)
        self._writer.flush()

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        if self._writer is None:
            folder = self._run / FOLDER
            folder.mkdir(exist_ok=True)
            # Names have whole seconds only; the number keeps a second file of one second from replacing the first.
            self._writer = EventsWriter(str(folder / "events"), f".{len(list(folder.iterdir()))}")
            begun = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=0, session_log=begun))
        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=points)))


def scalars(row: Row) -> dict[str, float]:
    """The numbers in a row of the train log by their names in TensorBoard."""
    told_apart = row["state_set"] if row["kind"] == "diagnostics" else row["phase"]
    return {
        f"{row['kind']}/{told_apart}/{name}": float(value)
        for name, value in row.items()
        if name not in (*TRAIN_LOG_TEXT, "update") and value is not None
    }
