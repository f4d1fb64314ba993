"""`bench.py tasks`: training tasks a second, from the stream and from the candidates inside jit."""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import vm
from benchmarks.timing import Contender, Report, compiled, measure
from vm.tasks import TaskArrays, candidates

BENCH = "tasks"
BATCHES = (1024, 4096)
STREAM, CANDIDATES = "tasks_per_second", "tasks_per_second, candidates in jit"


def run(batches: Sequence[int] | None, repeats: int) -> Report:
    """Measure both ways of making that many tasks; of the candidates only those that are accepted count."""
    report = Report()
    for batch in batches or BATCHES:
        report.rows += measure(BENCH, [_stream(batch), _candidates(batch)], repeats)
    return report


def _stream(batch: int) -> Contender:
    """Whole tasks, prompt plans and start programs included, refused candidates left out."""
    stream = vm.TaskStream(seed=0)
    begin = time.perf_counter()
    jax.block_until_ready(stream.next_batch(batch))
    first = time.perf_counter() - begin
    return Contender(STREAM, batch, lambda: jax.block_until_ready(stream.next_batch(batch)), {"tasks": batch}, first)


def _candidates(batch: int) -> Contender:
    def make(indices: jax.Array) -> tuple[TaskArrays, jax.Array]:
        return candidates("train", 0, indices)

    indices = np.arange(batch, dtype=np.uint32)
    _, reason = jax.jit(make)(indices)
    return compiled(CANDIDATES, batch, {"tasks": int(jnp.sum(reason == 0))}, make, indices)
