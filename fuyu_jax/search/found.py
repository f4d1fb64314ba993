"""What searches found: the same record for every method, and how to read it off a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fuyu_jax.search.frontier import unpack
from fuyu_jax.search.state import Search
from vm.observation import matches
from vm.types import Examples, Program, Settings

Array = jax.Array


class Answer(NamedTuple):
    """The answer of each of N tasks, or, with a further axis K, its answers had the search ended earlier.

    Attributes:
      accepted: bool `[N]` or `[N, K]`: it is right on all public examples that it was judged by.
      program: `Program[..., L]`. Where nothing was accepted, the program whose outputs are most like the targets.
    """

    accepted: Any
    program: Program


class Found(NamedTuple):
    """What a method found for each of N tasks.

    Attributes:
      answer: in the end, `[N]`.
      actions: int32 `[N, H]`, the edits that lead to it from the start program, 0 past their end; all 0 for a method
        that builds programs from nothing.
      executions: int32 `[N]`, programs run on the public examples in all, and
      passes: int32 `[N]`, forward passes in all, 0 for a method without a model.
      by_executions: the answers with each of K numbers of executions, `[N, K]`.
      by_passes: the same with as many forward passes; None for a method without a model.
    """

    answer: Answer
    actions: Any
    executions: Any
    passes: Any
    by_executions: Answer
    by_passes: Answer | None


def read_off(search: Search, budgets: Sequence[int], horizon: int, settings: Settings) -> Found:
    """What a search has found so far. Unbatched; `vmap` it."""
    tried = search.tried

    def answer(within: Array) -> tuple[Array, Answer]:
        """The place of the best of the programs that count, bool `[S]`."""
        scores = jnp.where(within, tried.score, -1.0)
        place = jnp.argmax(scores)
        return place, Answer(scores[place] >= 1, unpack(tried.key[place], settings))

    def up_to(cost: Array) -> Answer:
        return jax.vmap(lambda budget: answer(cost <= budget)[1])(jnp.asarray(budgets, jnp.int32))

    place, last = answer(tried.attempt >= 0)

    def back(at: Array, _: None) -> tuple[Array, Array]:
        return jnp.maximum(tried.parent[at], 0), tried.action[at]

    # The path backwards; the start program, which is its own parent here, has action 0.
    _, actions = jax.lax.scan(back, place, None, length=horizon)
    places = tried.edits[place] - 1 - jnp.arange(horizon, dtype=jnp.int32)
    forward = jnp.where(places >= 0, actions[jnp.maximum(places, 0)], 0)
    return Found(last, forward, search.executions, search.passes, up_to(tried.executions), up_to(tried.passes))


def first_answers(
    programs: Sequence[Sequence[tuple[int, int]] | None],
    executions: NDArray[np.int32],
    budgets: Sequence[int],
    settings: Settings,
    actions: NDArray[np.int32] | None = None,
) -> Found:
    """The record of a method that ends with its first answer.

    Args:
      programs: the answer to each of N tasks as pairs (opcode, argument), None where there is none.
      executions: int32 `[N]`, programs run until then, or in all.
      budgets: executions after which the answers are reported.
      settings: the machine's sizes.
      actions: int32 `[N, H]`, the edits from the start program, where there are any.
    """
    op, arg = np.zeros((2, len(programs), settings.slots), np.int32)
    for row, program in enumerate(programs):
        for slot, pair in enumerate(program or ()):
            op[row, slot], arg[row, slot] = pair
    accepted = np.array([program is not None for program in programs])
    in_time = accepted[:, None] & (executions[:, None] <= np.array(budgets)[None])  # [N, K]
    last: Any = (op, arg)
    wide: Any = [np.where(in_time[..., None], field[:, None], 0) for field in last]
    nothing = np.zeros((len(programs), 1), np.int32)
    return Found(
        answer=Answer(accepted, Program(*last)),
        actions=nothing if actions is None else actions,
        executions=executions,
        passes=np.zeros(len(programs), np.int32),
        by_executions=Answer(in_time, Program(*wide)),
        by_passes=None,
    )


def all_right(program: Program, *examples: Examples, settings: Settings) -> NDArray[np.bool_]:
    """Which of N programs `[N, L]` are right on all of their examples `[N, E]`: bool `[N]`."""
    return np.logical_and.reduce([np.asarray(_right(program, part, settings)) for part in examples])


def _judge_all(program: Program, examples: Examples, settings: Settings) -> Array:
    return jax.vmap(lambda program, examples: jnp.all(matches(program, examples, settings)))(program, examples)


_right = jax.jit(_judge_all, static_argnums=2)
