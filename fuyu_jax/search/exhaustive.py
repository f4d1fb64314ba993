"""Exhaustive search by edit depth: all programs one edit away from the start program, then two, then three.

Depths 1 and 2 are `vm.reach`, which leaves out what is the same program again or follows a first edit that faults for
good. Depth 3 does the same around every program one edit away, and so runs a program once for each edit that may come
first; that is counted as it is run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import vm
from fuyu_jax.search.found import Found, first_answers
from vm import lowering
from vm.reach import EXACT_EDITS, reach

DEEPEST = 3

Array = jax.Array


@functools.partial(jax.jit, static_argnames=("depth", "settings"), compiler_options=lowering.compiler_options())
def _search(
    start: vm.Program, public: vm.Examples, budget: Array, depth: int, settings: vm.Settings
) -> tuple[Array, Array, Array]:
    """Edits of the first program that is right (more than `depth` where none was), the edits `[3]`, and executions."""
    nobody = jax.tree.map(lambda leaf: leaf[:0], public)
    actions = jnp.zeros(DEEPEST, jnp.int32)
    near = reach(start, public, nobody, min(depth, EXACT_EDITS), settings)
    actions = actions.at[: near.actions.shape[0]].set(near.actions)
    # Of single edits it is known which was right; for pairs the last row of candidates counts as a whole.
    valid = vm.valid_actions(start, settings)
    until = jnp.sum(valid[1:] & (jnp.arange(1, settings.num_actions) <= actions[0]), dtype=jnp.int32)
    executions = 1 + jnp.where(near.edits == 0, 0, jnp.where(near.edits == 1, until, near.executions[-1]))
    if depth <= EXACT_EDITS:
        return near.edits, actions, executions

    def going(state: tuple[Array, Array, Array, Array]) -> Array:
        first, edits, _, executions = state
        return (first < settings.num_actions) & (edits > DEEPEST) & (executions < budget)

    def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        first, _, _, executions = state
        after, _ = vm.apply_action(start, first, settings)
        found = reach(after, public, nobody, EXACT_EDITS, settings)
        some = valid[first] & (found.edits == EXACT_EDITS)  # fewer would have been seen before
        edits = jnp.where(some, DEEPEST, DEEPEST + 1)
        path = jnp.concatenate([first[None], found.actions])
        return first + 1, edits, path, executions + jnp.where(valid[first], found.executions[-1], 0)

    edits = jnp.where(near.edits > EXACT_EDITS, DEEPEST + 1, near.edits).astype(jnp.int32)
    _, edits, actions, executions = jax.lax.while_loop(going, step, (jnp.int32(1), edits, actions, executions))
    return edits, actions, executions


def exhaustive(
    tasks: vm.TaskArrays,
    budgets: Sequence[int],
    settings: vm.Settings,
    depth: int = EXACT_EDITS,
    judged: NDArray[np.bool_] | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> Found:
    """Try every program up to `depth` edits away from the start program of each of N tasks.

    Args:
      tasks: `[N, ...]`.
      budgets: executions after which the answers are reported; what costs more than the largest was not found.
      settings: the machine's sizes.
      depth: most edits, 1 to 3.
      judged: bool `[E]`, the public examples that a program must get right; all by default.
      advance: called after each task.

    Raises:
      ValueError: for another depth.
    """
    if not 1 <= depth <= DEEPEST:
        raise ValueError(f"an exhaustive search of {depth} edits is out of reach; use a depth of 1 to {DEEPEST}.")
    count, shown = tasks.public.targets.type.shape
    mask = np.flatnonzero(np.ones(shown, np.bool_) if judged is None else judged)
    most = max(budgets)
    programs: list[list[tuple[int, int]] | None] = []
    executions, actions = np.zeros(count, np.int32), np.zeros((count, DEEPEST), np.int32)
    for row in range(count):
        start = jax.tree.map(lambda leaf, row=row: leaf[row], tasks.start)
        public = jax.tree.map(lambda leaf, row=row: leaf[row][mask], tasks.public)
        edits, path, run = jax.device_get(_search(start, public, jnp.int32(most), depth, settings))
        right = edits <= depth and run <= most
        executions[row] = run
        programs.append(None)
        if right:
            actions[row, :edits] = path[:edits]
            programs[row] = _after(start, actions[row], settings)
        advance(1)
    return first_answers(programs, executions, budgets, settings, actions)


def _after(program: vm.Program, actions: NDArray[np.int32], settings: vm.Settings) -> list[tuple[int, int]]:
    """The program after some edits, as pairs."""
    for action in actions:
        program, _ = vm.apply_action(program, jnp.int32(action), settings)
    return list(zip(np.asarray(program.op).tolist(), np.asarray(program.arg).tolist(), strict=True))
