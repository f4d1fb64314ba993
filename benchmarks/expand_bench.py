"""`bench.py expand`: all edits of a program on four examples, with the run before the edited slot shared or not."""

from __future__ import annotations

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

import vm
from benchmarks.program_mix import Mix, program_mix
from benchmarks.timing import Contender, Report, compiled, measure
from vm import lowering
from vm.expansion import Expansion, every_edit, expand

BENCH = "expand"
BATCHES = (1, 64)
RATIO_BATCH = 64
EXPAND, RERUN = "expand", "every candidate from slot 0"


def run(batches: Sequence[int] | None, repeats: int) -> Report:
    """Measure both on full programs that run, and on programs to repair, which are shorter and often fail."""
    batches = batches or BATCHES
    report = Report(notes=["A candidate of `expand` is an edit that is valid; all of them run on 4 examples."])
    full = program_mix(max(batches), max(batches))
    for states, programs in (("full programs", full), ("programs to repair", _to_repair(max(batches)))):
        for batch in batches:
            part: Mix = jax.tree.map(lambda field, batch=batch: field[:batch], programs)
            contenders = _contenders(part, batch, states)
            chex.assert_trees_all_equal(*(contender.run() for contender in contenders))
            report.rows += measure(BENCH, contenders, repeats)
    for name, states in (("expand_vs_rerun", "full programs"), ("expand_vs_rerun_to_repair", "programs to repair")):
        cases = (f"{EXPAND}, {states}", f"{RERUN}, {states}")
        report.add_ratio(name, RATIO_BATCH, "candidates", cases)
    return report


def rerun(program: vm.Program, inputs: vm.Value) -> Expansion:
    """What `expand` gives, by running each of its programs as a whole. Unbatched."""
    programs, valid = every_edit(program)
    outputs = jax.vmap(jax.vmap(lambda program, example: vm.run(program, example).output, (None, 0)), (0, None))
    return Expansion(programs, valid, outputs(programs, inputs))


def _contenders(states: Mix, batch: int, name: str) -> list[Contender]:
    valid = jax.jit(jax.vmap(vm.valid_actions))(states.program)  # [N, actions], of which the first is STOP
    work = {"candidates": int(np.sum(valid[:, 1:])), "states": batch}
    options = lowering.compiler_options()
    return [
        compiled(f"{case}, {name}", batch, work, jax.vmap(function), *states, options=options)
        for case, function in ((EXPAND, expand), (RERUN, rerun))
    ]


def _to_repair(count: int) -> Mix:
    tasks = vm.make_tasks("train", 0, count, start="corrupted")
    return Mix(*jax.tree.map(jnp.asarray, (tasks.start, tasks.public.inputs)))
