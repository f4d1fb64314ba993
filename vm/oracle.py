"""The oracle that knows the reference: edit distance, and the edits that a teacher would make.

A repair turns each slot into what the reference has there. SET_OP keeps the argument where the new opcode reads one
and clears it where it does not, so a slot costs one edit for a wrong opcode and one for a wrong argument that the
reference's opcode reads, and slots are independent of each other. The brute force in `tests/test_oracle.py` confirms
both the distance and the teacher set by breadth-first search over the edits themselves.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp

from vm.edits import apply_action
from vm.isa import READS_ARG
from vm.types import DEFAULT_SETTINGS, NUM_OPCODES, Program, Settings

Placement = Literal["first", "nearest", "leftmost"]


class Teaching(NamedTuple):
    """What the oracle says of one program.

    Attributes:
      distance: int32 `[]`, the fewest edits to the reference; 0 when it is there.
      teacher: bool `[N]`, the teacher set: optimal edits that make one more field of their slot as in the reference.
        Never STOP; empty at distance 0.
    """

    distance: jax.Array
    teacher: jax.Array


class _SlotFix(NamedTuple):
    """How to turn a slot into a wanted instruction: its cost, and which of the two edits help right now."""

    cost: jax.Array
    set_op: jax.Array
    set_arg: jax.Array


def _reads(op: jax.Array) -> jax.Array:
    """Whether each opcode reads its argument; a bad opcode does not."""
    known = (op >= 0) & (op < NUM_OPCODES)
    return known & jnp.asarray(READS_ARG)[jnp.clip(op, 0, NUM_OPCODES - 1)]


def _slot_fix(op: jax.Array, arg: jax.Array, want_op: jax.Array, want_arg: jax.Array) -> _SlotFix:
    """Cost and helpful edits of each slot; all arguments share one shape.

    An argument counts as a field only where its opcode and the wanted one read it. So clearing a wrong argument by a
    detour through an opcode without one is no teacher's edit, though where 0 is wanted it would cost no more.
    """
    op_wrong = op != want_op
    arg_wrong = _reads(want_op) & (arg != want_arg)
    cost = op_wrong.astype(jnp.int32) + arg_wrong.astype(jnp.int32)
    return _SlotFix(cost, op_wrong, arg_wrong & _reads(op))


def _mark(fix: _SlotFix, want_op: jax.Array, want_arg: jax.Array, settings: Settings) -> jax.Array:
    """The helpful edits of each slot as a mask over its opcodes and arguments: bool `[..., 44 + A]`."""
    set_op = fix.set_op[..., None] & (jax.nn.one_hot(want_op, NUM_OPCODES) == 1)
    set_arg = fix.set_arg[..., None] & (jax.nn.one_hot(want_arg, settings.args) == 1)
    return jnp.concatenate([set_op, set_arg], axis=-1)


def distance(
    program: Program,
    reference: Program,
    settings: Settings = DEFAULT_SETTINGS,
    placement: Placement = "first",
    length: jax.Array | None = None,
) -> Teaching:
    """Fewest edits from a program to the reference, and the teacher set. Unbatched; `vmap` it.

    Args:
      program: int32 `[L]` opcodes and arguments; bad ones allowed.
      reference: int32 `[L]`, laid out from slot 0 with blank slots behind.
      settings: static sizes.
      placement: "first" compares with the reference as laid out; "nearest" with the closest order-preserving
        placement of its instructions among the slots (the rest NOP), and the teacher set then joins those of all
        closest placements; "leftmost" takes of these only the ones whose slot numbers have the least sum, so that a
        teacher who fills a blank program leaves no gap in it.
      length: int32 `[]`, the reference's number of instructions; all but "first" need it.

    Raises:
      ValueError: for another placement than "first" without a length.
    """
    chex.assert_shape([program.op, program.arg, reference.op, reference.arg], (settings.slots,))
    if placement == "first":
        fix = _slot_fix(program.op, program.arg, reference.op, reference.arg)
        mask = _mark(fix, reference.op, reference.arg, settings)  # [L, 44 + A]
        total = jnp.sum(fix.cost)
    else:
        if length is None:
            raise ValueError(f'distance(placement="{placement}") needs the length of the reference.')
        total, mask = _nearest(program, reference, length, settings, placement == "leftmost")
    stop = jnp.zeros(1, bool)
    return Teaching(total, jnp.concatenate([stop, mask.reshape(-1)]))


def _nearest(
    program: Program, reference: Program, length: jax.Array, settings: Settings, leftmost: bool
) -> tuple[jax.Array, jax.Array]:
    """Cheapest alignment of the reference's instructions with the slots, and the edits on any cheapest alignment.

    Dynamic programming over (slots passed, instructions placed), forward and backward; a move that lies on a path of
    the least total cost contributes its slot's helpful edits. With `leftmost` costs count in units that no sum of slot
    numbers reaches, and each placed instruction adds the number of its slot, which breaks ties and nothing else.
    """
    slots = settings.slots
    unit = slots * slots if leftmost else 1
    far = jnp.int32(4 * slots * unit)
    zeros = jnp.zeros(slots, jnp.int32)
    skip = _slot_fix(program.op, program.arg, zeros, zeros)  # [L]
    grid = (slots, slots)
    wide = [jnp.broadcast_to(x[:, None], grid) for x in (program.op, program.arg)]
    tall = [jnp.broadcast_to(x[None, :], grid) for x in (reference.op, reference.arg)]
    place = _slot_fix(wide[0], wide[1], tall[0], tall[1])  # [L slots, L instructions]
    number = jnp.arange(slots, dtype=jnp.int32)[:, None] if leftmost else jnp.int32(0)
    skip = skip._replace(cost=skip.cost * unit)
    place = place._replace(cost=place.cost * unit + number)
    counts = jnp.arange(slots + 1, dtype=jnp.int32)
    edge = jnp.full(1, far)

    def forward(cost: jax.Array, slot: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        skip_cost, place_cost = slot
        placed = jnp.concatenate([edge, cost[:-1] + place_cost])
        return jnp.minimum(cost + skip_cost, placed), cost

    def backward(cost: jax.Array, slot: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        skip_cost, place_cost = slot
        placed = jnp.concatenate([cost[1:] + place_cost, edge])
        return jnp.minimum(cost + skip_cost, placed), cost

    start = jnp.where(counts == 0, 0, far).astype(jnp.int32)
    goal = jnp.where(counts == length, 0, far).astype(jnp.int32)
    last, before = jax.lax.scan(forward, start, (skip.cost, place.cost))  # before[s, i]: cost to reach slot s
    _, after = jax.lax.scan(backward, goal, (skip.cost, place.cost), reverse=True)  # after[s, i]: cost past slot s
    total = last[length]
    skip_best = jnp.any(before + skip.cost[:, None] + after == total, axis=1)  # [L]
    place_best = before[:, :-1] + place.cost + after[:, 1:] == total  # [L, L]
    from_skip = _mark(skip, zeros, zeros, settings) & skip_best[:, None]
    from_place = _mark(place, tall[0], tall[1], settings) & place_best[:, :, None]
    return total // unit, from_skip | jnp.any(from_place, axis=1)


class OraclePath(NamedTuple):
    """A teacher's repair: `programs` `[T + 1, L]` before each edit and after the last, `actions` int32 `[T]`.

    Past the end (`distance` edits) programs repeat and actions are 0, STOP.
    """

    programs: Program
    actions: jax.Array
    distance: jax.Array


def repair(
    program: Program,
    reference: Program,
    key: jax.Array,
    steps: int,
    settings: Settings = DEFAULT_SETTINGS,
) -> OraclePath:
    """Repair along the reference, each edit drawn evenly from the teacher set: `oracle_reference`. Unbatched.

    Args:
      program: `[L]`, where to start.
      reference: `[L]`.
      key: a typed key; another key takes the edits in another order.
      steps: static number of edits to allow; the repair is complete when `distance` is at most this.
      settings: static sizes.
    """

    def step(state: Program, key: jax.Array) -> tuple[Program, tuple[Program, jax.Array]]:
        teacher = distance(state, reference, settings).teacher  # [N]
        noise = jax.random.uniform(key, teacher.shape)
        action = jnp.argmax(jnp.where(teacher, noise, -1.0)).astype(jnp.int32)
        action = jnp.where(jnp.any(teacher), action, 0)
        return apply_action(state, action, settings)[0], (state, action)

    total = distance(program, reference, settings).distance
    last, (programs, actions) = jax.lax.scan(step, program, jax.random.split(key, steps))
    programs = jax.tree.map(lambda path, end: jnp.concatenate([path, end[None]]), programs, last)
    return OraclePath(programs, actions, total)
