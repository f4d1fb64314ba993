"""The train log as TensorBoard event files, for whoever watches a run from a browser."""

from __future__ import annotations

import importlib
import importlib.util
import weakref
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
    """Event files in a run's folder that follow its `train_log.csv`, wherever its rows come from.

    A run that goes on in its folder writes all rows again and tells TensorBoard to forget what came before, so that no
    point is there twice.
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
        if self._writer is None:
            writers: Any = importlib.import_module(PACKAGE)
            self._writer = writers.SummaryWriter(str(self._run / FOLDER), purge_step=0, write_to_disk=True)
            # Points wait for a thread of the writer's, which only closing it waits for.
            weakref.finalize(self, self._writer.close)
        phases = list(dict.fromkeys(row["phase"] for row in rows if row["kind"] == "diagnostics"))
        for row in rows[self._written :]:
            step = phases.index(row["phase"]) + 1 if row["kind"] == "diagnostics" else row["update"]
            for name, value in scalars(row).items():
                self._writer.add_scalar(name, value, step)
        self._written = len(rows)


def scalars(row: Row) -> dict[str, float]:
    """The numbers in a row of the train log by their names in TensorBoard."""
    told_apart = row["state_set"] if row["kind"] == "diagnostics" else row["phase"]
    return {
        f"{row['kind']}/{told_apart}/{name}": float(value)
        for name, value in row.items()
        if name not in (*TRAIN_LOG_TEXT, "update") and value is not None
    }
