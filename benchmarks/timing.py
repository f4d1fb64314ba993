"""Fair timing: contenders take turns in one process, compile time stands apart, and medians are reported."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

LEAST_SECONDS = 0.02  # a timing shorter than this would measure the clock and the scheduler

Row = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """Something to time on one batch.

    Attributes:
      case: its name in the table.
      batch: size of the batch.
      run: does the work once and returns when it is done.
      work: how much one run does, by unit ("instructions").
      compile_s: seconds that tracing and compiling took, 0 where nothing is compiled.
    """

    case: str
    batch: int
    run: Callable[[], Any]
    work: Mapping[str, int]
    compile_s: float = 0.0

    def doing(self, work: Mapping[str, int]) -> Contender:
        """The same contender where the amount of work is known only after a run."""
        return dataclasses.replace(self, work=work)


@dataclass
class Report:
    """What a benchmark found: table rows, ratios by name, and sentences that a reader needs."""

    rows: list[Row] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def rate(self, case: str, batch: int, unit: str) -> float:
        """The measured rate of a case."""
        found = [row for row in self.rows if (row["case"], row["batch"], row["unit"]) == (case, batch, f"{unit}/s")]
        return float(found[0]["rate"])

    def add_ratio(self, name: str, batch: int, unit: str, cases: tuple[str, str]) -> None:
        """Divides the rates of two cases; there is no ratio where one of them was not measured at this batch."""
        measured = {(row["case"], row["batch"]) for row in self.rows}
        if all((case, batch) in measured for case in cases):
            self.ratios[name] = self.rate(cases[0], batch, unit) / self.rate(cases[1], batch, unit)


def compiled(
    case: str,
    batch: int,
    work: Mapping[str, int],
    function: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
) -> Contender:
    """A jax function as a contender, compiled for these arguments; `compile_s` includes tracing."""
    begin = time.perf_counter()
    program = jax.jit(function, compiler_options=dict(options or {})).lower(*args).compile()
    seconds = time.perf_counter() - begin
    args = jax.block_until_ready(jax.device_put(args, program.input_shardings[0]))
    return Contender(case, batch, lambda: jax.block_until_ready(program(*args)), work, seconds)


def measure(bench: str, contenders: Sequence[Contender], repeats: int) -> list[Row]:
    """Time the contenders in turns, `repeats` rounds, and give a row for each contender and unit of work.

    Turns spread whatever else the machine does over all of them. A contender that is quick is run many times in a turn.
    """
    calls = [_calls(contender.run) for contender in contenders]
    seconds: list[list[float]] = [[] for _ in contenders]
    for _ in range(repeats):
        for contender, count, mine in zip(contenders, calls, seconds, strict=True):
            mine.append(_time(contender.run, count))
    return [
        row
        for contender, mine in zip(contenders, seconds, strict=True)
        for row in make_rows(bench, contender, statistics.median(mine))
    ]


def make_rows(bench: str, contender: Contender, run_s: float) -> list[Row]:
    """The table's rows of a contender that takes `run_s` seconds a run."""
    return [
        {
            "bench": bench,
            "case": contender.case,
            "batch": contender.batch,
            "compile_s": contender.compile_s,
            "run_s": run_s,
            "rate": amount / run_s,
            "unit": f"{unit}/s",
        }
        for unit, amount in contender.work.items()
    ]


def _calls(run: Callable[[], Any]) -> int:
    """Runs in a turn: a first one warms up, a second one tells how long a run takes."""
    run()
    return math.ceil(LEAST_SECONDS / max(_time(run, 1), 1e-7))


def _time(run: Callable[[], Any], count: int) -> float:
    """Seconds a run."""
    begin = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - begin) / count
