"""`bench.py tasks`: training tasks a second, from the stream and from the candidates inside jit."""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax
import numpy as np

import vm
from benchmarks.timing import Contender, Report, compiled, measure
from vm.tasks import TaskArrays, candidates

BENCH = "tasks"
BATCHES = (1024, 4096)
STREAM, CANDIDATES = "tasks_per_second", "tasks_per_second, candidates in jit"


def run(batches: Sequence[int] | None, repeats: int) -> Report:
    """Measure both ways of making that many tasks; of the candidates only those that are accepted count."""
    report = Report(notes=["The stream compiles once for all sizes; its compile time is in each of its rows."])
    compile_s = _first_task() - _first_task()
    for batch in batches or BATCHES:
        report.rows += measure(BENCH, [_stream(batch, compile_s), _candidates(batch)], repeats)
    return report


def _first_task() -> float:
    """Seconds until a new stream gives its first task."""
    begin = time.perf_counter()
    jax.block_until_ready(vm.TaskStream(seed=0).next_batch(1))
    return time.perf_counter() - begin


def _stream(batch: int, compile_s: float) -> Contender:
    """Whole tasks, prompt plans and start programs included, refused candidates left out."""
    stream = vm.TaskStream(seed=0)
    return Contender(
        STREAM, batch, lambda: jax.block_until_ready(stream.next_batch(batch)), {"tasks": batch}, compile_s
    )


def _candidates(batch: int) -> Contender:
    def make(indices: jax.Array) -> tuple[TaskArrays, jax.Array]:
        return candidates("train", 0, indices)

    contender = compiled(CANDIDATES, batch, {}, make, np.arange(batch, dtype=np.uint32))
    _, reason = contender.run()
    return contender.doing({"tasks": int(np.sum(np.asarray(reason) == 0))})
