"""`bench.py oracle`: which tasks are solved within two edits, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import vm
from benchmarks.timing import Contender, Report, compiled, measure
from vm import lowering
from vm.beam import search_tasks
from vm.reach import EXACT_EDITS, Search

BENCH = "oracle"
BATCHES = (1, 256)
CASE = f"exact, {EXACT_EDITS} edits"


def run(batches: Sequence[int] | None, repeats: int) -> Report:
    """Measure the search on the first tasks of the train split; the tasks that need most executions come first."""
    batches = batches or BATCHES
    tasks = vm.make_tasks("train", 0, max(batches))
    arguments = (tasks.start, tasks.public, tasks.hidden)
    report = Report()
    everything = _contender(arguments, max(batches))
    found: Search = everything.run()
    hardest = np.argsort(-np.asarray(found.executions[:, -1]), kind="stable")
    solved = np.bincount(np.asarray(found.edits), minlength=EXACT_EDITS + 2)
    report.notes.append(
        f"Of {max(batches)} train tasks {solved[0]} are solved at the start, {solved[1]} by one edit and {solved[2]} "
        f"by two. Smaller batches are those that need most executions: up to {int(np.max(found.executions[:, -1])):,} "
        f"programs, each on {tasks.public.targets.type.shape[1]} examples."
    )
    for batch in batches:
        part = jax.tree.map(lambda field, batch=batch: field[hardest[:batch]], arguments)
        contender = everything if batch == max(batches) else _contender(part, batch)
        report.rows += measure(BENCH, [contender], repeats)
    return report


def _contender(arguments: Any, batch: int) -> Contender:
    def search(start: vm.Program, public: vm.Examples, hidden: vm.Examples) -> Search:
        return search_tasks(start, public, hidden, EXACT_EDITS, width=0)

    contender = compiled(CASE, batch, {"tasks": batch}, search, *arguments, options=lowering.compiler_options())
    programs = int(np.sum(contender.run().executions[:, -1]))
    return contender.doing({"tasks": batch, "programs": programs})
