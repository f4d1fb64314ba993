"""Bottom-up enumeration: programs by their number of instructions, those that act alike on the public inputs once.

Two programs act alike where they leave the same stack on every public input: whatever instructions follow, the two
then give the same outputs, so that nothing is lost by keeping the first. Equal outputs alone would not do, since what
lies under the top of the stack may still be needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import vm
from fuyu_jax.search.found import Found, first_answers
from vm import datapath, lowering
from vm.controls import CELL_BITS, decode
from vm.isa import OPCODE_OF, READS_ARG
from vm.machine import load
from vm.types import NUM_OPCODES

PARENTS = 16  # programs that are extended at a time

Array = jax.Array


class _Stacks(NamedTuple):
    """The stacks that programs leave on E public inputs, as plain numbers; host arrays `[M, ...]`.

    Attributes:
      cells: int32 `[M, E, D, W]`, the words, 0 where there is none.
      meta: int32 `[M, E]`, packed types and lengths of the cells.
    """

    cells: NDArray[np.int32]
    meta: NDArray[np.int32]


def instructions(settings: vm.Settings) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Opcode and argument of every instruction that can do something: all but NOP and inputs beyond the second."""
    inputs = min(2, settings.args)
    every = [
        (op, arg)
        for op in range(1, NUM_OPCODES)
        for arg in range((inputs if op == OPCODE_OF["INPUT"] else settings.args) if READS_ARG[op] else 1)
    ]
    ops, args = np.array(every, np.int32).T
    return ops, args


@functools.partial(jax.jit, static_argnames="settings", compiler_options=lowering.compiler_options())
def _extend(cells: Array, meta: Array, inputs: vm.Value, settings: vm.Settings) -> tuple[Array, Array, Array]:
    """Every instruction after each of P programs, on E inputs: cells `[P, I, E, D, W]`, meta and status `[P, I, E]`."""
    ops, args = instructions(settings)
    lanes = (cells.shape[0], len(ops), meta.shape[1])

    def spread(leaf: Array) -> Array:
        return jnp.broadcast_to(leaf[:, None], lanes).reshape(-1)

    op, arg = (jnp.broadcast_to(jnp.asarray(x)[None, :, None], lanes).reshape(-1) for x in (ops, args))
    controls = decode(op, arg, settings)
    task = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None, None], lanes).reshape(-1), load(inputs))
    words = tuple(
        tuple(spread(cells[..., cell, word]) for word in range(settings.width)) for cell in range(settings.stack)
    )
    nothing = jnp.zeros(words[0][0].shape, jnp.int32)
    after = datapath.step(datapath.State(words, spread(meta), nothing, nothing), controls, task, lowering.kept_call)
    kinds = [(after.meta >> (CELL_BITS * cell)) & 3 for cell in range(settings.stack)]
    left = [[jnp.where(kind != 0, word, 0) for word in cell] for kind, cell in zip(kinds, after.cells, strict=True)]
    stacked = jnp.stack([jnp.stack(cell, axis=-1) for cell in left], axis=-2)  # [lanes, D, W]
    return stacked.reshape(*lanes, *stacked.shape[1:]), after.meta.reshape(lanes), after.status.reshape(lanes)


def enumerate_programs(
    inputs: vm.Value, targets: vm.Value, judged: NDArray[np.bool_], budget: int, settings: vm.Settings
) -> tuple[int, list[tuple[int, int]] | None]:
    """Look for the shortest program that gives the judged targets of one task.

    Args:
      inputs: `Value[E, 2]`, host or device.
      targets: `Value[E]`.
      judged: bool `[E]`, the examples that are looked at; programs are told apart on these inputs only.
      budget: most programs to run, at least 1. The empty program is the first.
      settings: the machine's sizes.

    Returns:
      The number of programs run, and the instructions of the one found, None where the budget was spent.
    """
    inputs, targets = jax.tree.map(lambda leaf: np.asarray(leaf)[judged], (inputs, targets))
    wanted_meta = targets.type | (targets.length << 2)
    top = (1 << CELL_BITS) - 1
    begin = datapath.start(load(jax.tree.map(jnp.asarray, inputs)), settings)
    root = _Stacks(
        np.stack([np.stack([np.asarray(word) for word in cell], -1) for cell in begin.cells], -2)[None],
        np.asarray(begin.meta)[None],
    )

    def right(stacks: _Stacks) -> NDArray[np.bool_]:
        same = ((stacks.meta & top) == wanted_meta) & (stacks.cells[:, :, 0] == targets.words).all(-1)
        return np.asarray(same.all(-1))

    programs: list[tuple[tuple[int, int], ...]] = [()]
    if right(root)[0]:
        return 1, []
    ops, args = instructions(settings)
    known, level, run = {_key(root, 0)}, root, 1
    for _ in range(settings.slots):
        kept: list[_Stacks] = []
        longer: list[tuple[tuple[int, int], ...]] = []
        for first in range(0, len(programs), PARENTS):
            parents = _Stacks(*(_padded(leaf[first : first + PARENTS], PARENTS) for leaf in level))
            cells, meta, status = jax.device_get(_extend(*parents, inputs, settings))
            count = min(PARENTS, len(programs) - first) * len(ops)
            after = _Stacks(*(leaf.reshape(-1, *leaf.shape[2:])[:count] for leaf in (cells, meta)))
            runs = (status.reshape(-1, status.shape[-1])[:count] == 0).all(-1)
            hits = np.flatnonzero(runs & right(after))
            if len(hits) and run + hits[0] < budget:
                parent, last = divmod(int(hits[0]), len(ops))
                return run + int(hits[0]) + 1, [*programs[first + parent], (int(ops[last]), int(args[last]))]
            run += count
            if run >= budget:
                return budget, None
            fresh = []
            for place in np.flatnonzero(runs).tolist():
                key = _key(after, place)
                if key not in known:
                    known.add(key)
                    fresh.append(place)
                    parent, last = divmod(place, len(ops))
                    longer.append((*programs[first + parent], (int(ops[last]), int(args[last]))))
            kept.append(_Stacks(*(leaf[fresh] for leaf in after)))
        if not longer:
            break
        level, programs = _Stacks(*(np.concatenate(leaves) for leaves in zip(*kept, strict=True))), longer
    return run, None


def _key(stacks: _Stacks, place: int) -> bytes:
    return stacks.meta[place].tobytes() + stacks.cells[place].tobytes()


def _padded(rows: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """Rows, the last again and again up to a count, so that nothing is compiled anew."""
    return rows[np.minimum(np.arange(count), len(rows) - 1)]


def bottom_up(
    tasks: vm.TaskArrays,
    budgets: Sequence[int],
    settings: vm.Settings,
    judged: NDArray[np.bool_] | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> Found:
    """Enumerate for N tasks, up to the largest budget; see `enumerate_programs`.

    Args:
      tasks: `[N, ...]`; start programs, prompts and references are not looked at.
      budgets: executions after which the answers are reported.
      settings: the machine's sizes.
      judged: bool `[E]`, the public examples that a program must get right; all by default.
      advance: called after each task.
    """
    count, shown = tasks.public.targets.type.shape
    mask = np.ones(shown, np.bool_) if judged is None else judged
    public = jax.device_get(tasks.public)
    executions, found = [], []
    for row in range(count):
        here = jax.tree.map(lambda leaf, row=row: leaf[row], public)
        run, program = enumerate_programs(here.inputs, here.targets, mask, max(budgets), settings)
        executions.append(run)
        found.append(program)
        advance(1)
    return first_answers(found, np.array(executions, np.int32), budgets, settings)
