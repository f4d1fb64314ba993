"""Runs what a plan holds, one process a run: what is done is left alone, what stopped goes on."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tabulate import tabulate

from fuyu_jax.runs.costs import measure_slowness, minutes_of
from fuyu_jax.runs.errors import Interrupted, RunStopped, UserError
from fuyu_jax.runs.policies import read_config
from fuyu_jax.runs.report import REPORT
from fuyu_jax.runs.shared_bc import NOT_COPYING
from fuyu_jax.study.packing import StudyData, check_same
from fuyu_jax.study.plan import Plan, PlannedRun

RUNS, COMPILED = "runs", "compiled"  # inside the study's folder
CACHE = "JAX_COMPILATION_CACHE_DIR"


@dataclass(frozen=True)
class Runner:
    """Runs a study.

    Attributes:
      plan: what to run.
      out: the study's folder, for runs and compiled programs.
      data: the folder of the packed data.
      pilot: the script of a run.
      command: how this study was called, to say how it goes on.
    """

    plan: Plan
    out: Path
    data: Path
    pilot: Path
    command: Sequence[str]

    def wanted(self, pattern: str = "*") -> list[PlannedRun]:
        """The planned runs whose `regime/cell` a shell pattern fits.

        Raises:
          UserError: where it fits none.
        """
        found = [run for run in self.plan.runs if fnmatch.fnmatchcase(f"{run.regime}/{run.cell}", pattern)]
        if not found:
            cells = dict.fromkeys(f"{run.regime}/{run.cell}" for run in self.plan.runs)
            raise UserError(f"--only {pattern} fits no cell; use one of {', '.join(cells)}.")
        return found

    def waiting(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Those of the runs that are not in the packed data."""
        data = StudyData.read(self.data)
        return [run for run in runs if not data.has(run)]

    def run(self, runs: Sequence[PlannedRun]) -> None:
        """Runs what is waiting, packing each run as it ends.

        Raises:
          Interrupted: at a signal, with the command to go on with.
          RunStopped: at the end, where a run failed.
        """
        todo, failed = self.waiting(runs), []
        with _signals_raise():
            for number, run in enumerate(todo, 1):
                print(f"run {number} of {len(todo)}: {run.name}", flush=True)
                if self._run_one(run):
                    failed.append(run.name)
                    continue
                data = StudyData.read(self.data)
                data.add(run, self.folder(run))
                data.write(self.data)
        if failed:
            raise RunStopped(
                f"{len(failed)} of {len(todo)} runs failed: {', '.join(failed)}; see what each said above."
            )

    def folder(self, run: PlannedRun) -> Path:
        """Where a run writes."""
        return self.out / RUNS / run.name

    def _run_one(self, run: PlannedRun) -> int:
        """The exit status of a run, which is begun, or goes on, or is finished already."""
        folder = self.folder(run)
        begun = (folder / "config.json").exists()
        if begun:
            check_same(run, folder, read_config(folder))
            if (folder / REPORT).exists():
                return 0
        words = ["--resume", str(folder)] if begun else ["--out", str(folder), *_options(run)]
        environment = {CACHE: str(self.out / COMPILED), **os.environ}
        # In a session of its own, so that a signal comes to it once, from here.
        with subprocess.Popen(
            [sys.executable, str(self.pilot), *words], env=environment, start_new_session=True
        ) as process:
            try:
                return process.wait()
            except Interrupted as stop:
                process.send_signal(stop.number)
                process.wait()
                raise Interrupted(stop.number, f"interrupted; go on with: {shlex.join(self.command)}") from None


def cost_text(runs: Sequence[PlannedRun], waiting: Sequence[PlannedRun]) -> str:
    """What the cells cost here: a row a cell, and the sum of what is still to run."""
    slowness, shelf, minutes = measure_slowness(), set(), {}
    for run in runs:
        copied = tuple(value for name, value in vars(run.settings).items() if name not in NOT_COPYING)
        minutes[run.name] = minutes_of(run.settings, slowness, copied not in shelf)
        shelf.add(copied)
    names = {run.name for run in waiting}
    rows = []
    for regime, cell in dict.fromkeys((run.regime, run.cell) for run in runs):
        mine = [run for run in runs if (run.regime, run.cell) == (regime, cell)]
        left = [run for run in mine if run.name in names]
        rows.append(
            [regime, cell, len(mine), len(mine) - len(left), f"{min(minutes[run.name] for run in mine):.1f}"]
            + [f"{sum(minutes[run.name] for run in left):.0f}"]
        )
    total = sum(minutes[run.name] for run in waiting)
    header = ["regime", "cell", "runs", "done", "minutes a run", "minutes to go"]
    return f"{tabulate(rows, header)}\n\nabout {total / 60:.1f} hours to go"


def _options(run: PlannedRun) -> list[str]:
    return [word for name, text in run.settings.options().items() for word in (f"--{name}", text)]


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM raise `Interrupted`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
