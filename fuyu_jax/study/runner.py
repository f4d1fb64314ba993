"""Runs what a plan holds, one process a run: what is done is left alone, what stopped goes on.

Runs that would copy the same policy wait for the first of them, which shares it with the others.
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from fuyu_jax.runs.costs import measure_slowness, minutes_of
from fuyu_jax.runs.errors import Interrupted, RunStopped, UserError
from fuyu_jax.runs.policies import read_config
from fuyu_jax.runs.shared_bc import NOT_COPYING
from fuyu_jax.study.packing import StudyData, check_same
from fuyu_jax.study.plan import Plan, PlannedRun
from fuyu_jax.study.processes import Job, run_side_by_side

RUNS, COMPILED, SAID = "runs", "compiled", "said"  # inside the study's folder
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
      jobs: how many runs go on at once; what they say then goes to files, as it would be mixed here.
    """

    plan: Plan
    out: Path
    data: Path
    pilot: Path
    command: Sequence[str]
    jobs: int = 1

    def wanted(self, patterns: Sequence[str] = ("*",)) -> list[PlannedRun]:
        """The planned runs whose `regime/cell`, or `regime/cell/sSEED`, fits one of some shell patterns.

        Raises:
          UserError: where a pattern fits none.
        """
        found: set[str] = set()
        for pattern in patterns:
            fits = {run.name for run in self.plan.runs if any(fnmatch.fnmatchcase(a, pattern) for a in _addresses(run))}
            if not fits:
                cells = dict.fromkeys(f"{run.regime}/{run.cell}" for run in self.plan.runs)
                raise UserError(f"--only {pattern} fits no cell; use one of {', '.join(cells)}.")
            found |= fits
        return [run for run in self.plan.runs if run.name in found]

    def waiting(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """Those of the runs that are not in the packed data."""
        data = StudyData.read(self.data)
        return [run for run in runs if not data.has(run)]

    def run(self, runs: Sequence[PlannedRun]) -> None:
        """Runs what is waiting, packing each run as it ends.

        Raises:
          Interrupted: at a signal, with the command to go on with.
          RunStopped: at the end, where a run failed.
          UserError: where a folder of a run holds another one; then nothing is run.
        """
        todo = {run.name: run for run in self.waiting(runs)}
        jobs = [self._job(run) for run in todo.values()]
        begun, failed = iter(range(1, len(jobs) + 1)), []

        def at_begin(job: Job) -> None:
            print(f"run {next(begun)} of {len(todo)}: {job.name}", flush=True)

        def at_end(job: Job, status: int) -> None:
            if status:
                failed.append(job.name)
                if job.said:
                    print(f"{job.name} failed; what it said is in {job.said}", file=sys.stderr, flush=True)
                return
            data = StudyData.read(self.data)
            data.add(todo[job.name], self.folder(todo[job.name]))
            data.write(self.data)

        try:
            run_side_by_side(jobs, self.jobs, at_begin, at_end)
        except Interrupted as stop:
            raise Interrupted(stop.number, f"interrupted; go on with: {shlex.join(self.command)}") from None
        if failed:
            raise RunStopped(
                f"{len(failed)} of {len(todo)} runs failed: {', '.join(failed)}; see what each said above."
            )

    def folder(self, run: PlannedRun) -> Path:
        """Where a run writes."""
        return self.out / RUNS / run.name

    def _job(self, run: PlannedRun) -> Job:
        """The run as a command: begun anew, or gone on with, which for a finished one changes nothing."""
        folder = self.folder(run)
        begun = (folder / "config.json").exists()
        if begun:
            check_same(run, folder, read_config(folder))
        words = ["--resume", str(folder)] if begun else ["--out", str(folder), *_options(run)]
        cache = os.environ.get(CACHE, str(self.out / COMPILED))
        said = None if self.jobs == 1 else self.out / SAID / f"{run.name}.txt"
        return Job(run.name, [sys.executable, str(self.pilot), *words], {CACHE: cache}, _copied(run), said)


def cost_text(runs: Sequence[PlannedRun], waiting: Sequence[PlannedRun]) -> str:
    """What the cells cost here: a row a cell, and the sum of what is still to run."""
    slowness, shelf, minutes = measure_slowness(), set(), {}
    for run in runs:
        minutes[run.name] = minutes_of(run.settings, slowness, _copied(run) not in shelf)
        shelf.add(_copied(run))
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


def _copied(run: PlannedRun) -> tuple[Any, ...]:
    """What decides the policy that a run copies: equal where two runs share it."""
    return tuple(value for name, value in vars(run.settings).items() if name not in NOT_COPYING)


def _addresses(run: PlannedRun) -> tuple[str, str]:
    return f"{run.regime}/{run.cell}", f"{run.regime}/{run.cell}/s{run.settings.seed}"
