"""Exactly which tasks are solved within two edits: every program that near is judged, however it differs.

A program two edits away differs in two slots, by one edit each, or in one slot that got an opcode and an argument. So
there are three kinds of walk (`vm.expansion`): over the program itself with all edits; over the program itself with
every opcode that reads an argument and every argument; and for each first edit, over the program after it with all
edits of later slots. Left out is what cannot solve, a first edit that fails on an example, and what is the same program
again: an edit of a blank slot whose neighbour to the left is as blank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vm import datapath
from vm.edits import valid_actions
from vm.expansion import Question, arrange, edited_slots, every_edit, walk
from vm.isa import READS_ARG
from vm.observation import matches
from vm.types import DEFAULT_SETTINGS, NUM_OPCODES, Examples, Program, Settings

EXACT_EDITS = 2  # up to here a search leaves nothing out
JUDGED = 8  # programs right on the public examples that are run on the hidden ones together

Array = jax.Array


class Search(NamedTuple):
    """What a search found.

    Attributes:
      edits: int32 `[]`, length of the repair; one more than was allowed when there is none.
      actions: int32 `[K]`, the repair, 0 past its end.
      executions: int32 `[K + 1]`, candidate programs run until it was found, or in all, had 0 to K edits been allowed.
    """

    edits: Array
    actions: Array
    executions: Array


class _Rows(NamedTuple):
    """Where the walks stand: the number of the next one, what is known, and the first edits still to go on from."""

    row: Array  # []
    found: Search
    first_edits: Array  # [N - 1], those that run, in order, then N - 1
    rows: Array  # [], walks there are in all


def reach(start: Program, public: Examples, hidden: Examples, k: int, settings: Settings = DEFAULT_SETTINGS) -> Search:
    """The fewest edits, up to k, after which all examples are right: nothing is left out. Unbatched.

    Args:
      start: int32 `[L]` fields.
      public: the examples that all candidates run on, `[E]`, 1 to `lowering.CHUNK` of them.
      hidden: those that only candidates that are right on the public ones run on, `[H]`.
      k: static, 1 or 2.
      settings: the machine's sizes.

    Raises:
      ValueError: for another k, or too many public examples.
    """
    if k not in (1, EXACT_EDITS):
        raise ValueError(f"reach(k={k}) is not exact; use k=1 or k={EXACT_EDITS}.")
    count, per_slot = settings.num_actions - 1, NUM_OPCODES + settings.args
    programs, _ = every_edit(start, settings)
    valid = valid_actions(start, settings)[1:].reshape(settings.slots, per_slot)
    new = _is_new(start)
    pairs = _opcodes_with_arguments(per_slot, settings)  # [S, 44 + A]
    wide = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], *valid.shape)), pairs)  # [S, L, 44 + A]
    edited = edited_slots(programs, settings)
    tried = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), edited, wide)
    candidates = jax.vmap(lambda field: arrange(field, public.inputs.type.shape[0], settings))(tried)
    sets = candidates.control.shape[0] if k == EXACT_EDITS else 1  # walks over the program itself
    usable = (wide.op != start.op[None, :, None]) & (wide.arg != start.arg[None, :, None])
    usable = jnp.concatenate([valid[None], usable & (wide.op != 0)])  # [1 + S, L, 44 + A]
    slots = jnp.arange(settings.slots, dtype=jnp.int32)
    seen = (public.targets.type | (public.targets.length << 2), tuple(jnp.moveaxis(public.targets.words, -1, 0)))

    def step(state: _Rows) -> _Rows:
        is_pair = state.row >= sets
        first = state.first_edits[jnp.maximum(state.row - sets, 0)]
        slot = jnp.where(is_pair, first // per_slot, -1)
        base = jax.tree.map(lambda other, own: jnp.where(is_pair, other[first], own), programs, start)
        which = jnp.where(is_pair, 0, state.row)
        wanted = (slots > slot) & (new | (slots == slot + 1))
        chosen = jax.tree.map(lambda x: x[which], candidates)
        right, ran = walk(Question(_judge, jnp.all), base, chosen, wanted, public.inputs, seen, settings)
        mask = usable[which] & wanted[:, None]
        right = right[:, :per_slot] & mask
        second = jax.tree.map(lambda x: x[which], tried)

        def put(place: Array) -> Program:
            here = slots == place // per_slot
            return jax.tree.map(lambda own, new: jnp.where(here, new.reshape(-1)[place], own), base, second)

        place = first_right(right.reshape(-1), put, hidden, settings)
        actions = _actions(place, first, second, is_pair, which)
        edits = jnp.where(which + is_pair == 0, 1, 2)
        counted = jnp.where(jnp.arange(k + 1) >= edits, jnp.sum(mask, dtype=jnp.int32), 0)
        executions = state.found.executions + counted
        hit = place < count
        found = Search(jnp.where(hit, edits, k + 1).astype(jnp.int32), jnp.where(hit, actions, 0)[:k], executions)
        is_first = state.row == 0
        live = (ran[:, :per_slot] > slots[:, None]) & valid & (new & (slots < settings.slots - 1))[:, None]
        order = jnp.nonzero(live.reshape(-1), size=count, fill_value=count)[0].astype(jnp.int32)
        total = sets + (jnp.sum(live, dtype=jnp.int32) if k == EXACT_EDITS else 0)
        return _Rows(
            state.row + 1,
            found,
            jnp.where(is_first, order, state.first_edits),
            jnp.where(is_first, total, state.rows),
        )

    already = jnp.all(matches(start, public, settings)) & right_on(start, hidden, settings)
    found = Search(jnp.where(already, 0, k + 1).astype(jnp.int32), jnp.zeros(k, jnp.int32), jnp.zeros(k + 1, jnp.int32))
    begin = _Rows(jnp.int32(0), found, jnp.zeros(count, jnp.int32), jnp.int32(sets))
    return jax.lax.while_loop(lambda s: (s.row < s.rows) & (s.found.edits > k), step, begin).found


def _is_new(program: Program) -> Array:
    """Slots that are no mere continuation of a blank: bool `[L]`. An edit of the others acts as one further left."""
    blank = (program.op[1:] == 0) & (program.op[:-1] == 0) & (program.arg[1:] == program.arg[:-1])
    return jnp.concatenate([jnp.ones(1, bool), ~blank])


def _opcodes_with_arguments(per_set: int, settings: Settings) -> Program:
    """Every opcode that reads an argument with every argument, NOP behind them, in sets: `[S, per_set]`."""
    opcodes = np.flatnonzero(READS_ARG)
    op, arg = np.repeat(opcodes, settings.args), np.tile(np.arange(settings.args), len(opcodes))
    missing = -len(op) % per_set
    return Program(*(jnp.asarray(np.pad(x, (0, missing)).reshape(-1, per_set), jnp.int32) for x in (op, arg)))


def _judge(state: datapath.State, seen: tuple[Array, tuple[Array, ...]], examples: int) -> tuple[Array, Array]:
    """Whether each candidate is right on all examples, and the slots that it ran on every one: bool and int32 `[C]`."""
    meta, words = datapath.top(state)
    right = (state.status == 0) & (meta == seen[0])
    for word, target in zip(words, seen[1], strict=True):
        right = right & (word == target)
    by_example = (examples, -1)
    return jnp.all(right.reshape(by_example), axis=0), jnp.min(state.pc.reshape(by_example), axis=0)


def right_on(program: Program, examples: Examples, settings: Settings) -> Array:
    """Whether a program is right on all examples, of which there may be none: bool `[]`."""
    return jnp.all(matches(program, examples, settings)) if examples.targets.type.shape[0] else jnp.bool_(True)


def first_right(marked: Array, program_at: Callable[[Array], Program], hidden: Examples, settings: Settings) -> Array:
    """The first marked candidate that is right on the hidden examples as well, as int32 `[]`; M where there is none.

    Args:
      marked: bool `[M]`, the candidates in question.
      program_at: the program `[L]` of the candidate with a number `[]`.
      hidden: examples `[H]`, of which there may be none.
      settings: the machine's sizes.
    """
    count = marked.shape[0]

    def look(state: tuple[Array, Array]) -> tuple[Array, Array]:
        left, _ = state
        places = jnp.nonzero(left, size=JUDGED, fill_value=count)[0].astype(jnp.int32)
        judge = lambda place: right_on(program_at(place), hidden, settings)  # noqa: E731
        good = jax.vmap(judge)(jnp.minimum(places, count - 1)) & (places < count)
        place = jnp.where(jnp.any(good), places[jnp.argmax(good)], count)
        return left & (jnp.arange(count) > places[-1]), place

    begin = (marked, jnp.int32(count))
    return jax.lax.while_loop(lambda state: jnp.any(state[0]) & (state[1] == count), look, begin)[1]


def _actions(place: Array, first: Array, tried: Program, is_pair: Array, which: Array) -> Array:
    """The two edits, 0 for none, that lead to a candidate: int32 `[2]`."""
    per_slot = tried.op.shape[1]
    slot, column = place // per_slot, place % per_slot
    base = 1 + slot * per_slot
    in_one_slot = jnp.stack([base + tried.op[slot, column], base + NUM_OPCODES + tried.arg[slot, column]])
    single = jnp.stack([place + 1, jnp.zeros_like(place)])
    pair = jnp.stack([first + 1, place + 1])
    return jnp.where(is_pair, pair, jnp.where(which > 0, in_one_slot, single)).astype(jnp.int32)
