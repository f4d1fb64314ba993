"""Every edit of a program, run on every example, with the run before the edited slot shared.

A program that differs in slot s runs like the one it comes from up to s. So one machine an example walks over the
slots; at each of them it is copied for every candidate instruction, and the copies run on to the end. That halves the
work (36 of 64 slots for 8 slots), and a walk whose prefix has failed ends at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from vm import datapath, lowering
from vm.controls import Controls, decode
from vm.edits import apply_action
from vm.machine import load, unload
from vm.types import DEFAULT_SETTINGS, Program, Settings, Value

EXAMPLES = 32  # examples that walk side by side, at most; with more, there is a walk for each such part

Array = jax.Array


class Expansion(NamedTuple):
    """All edits of one program; edit i is the flat action i + 1.

    Attributes:
      programs: `[N - 1, L]`; an edit that is not valid changes nothing.
      valid: bool `[N - 1]`.
      outputs: `Value[N - 1, E]`.
    """

    programs: Program
    valid: Array
    outputs: Value


class Question(NamedTuple):
    """What a walk is to find out, made of functions at module level.

    Attributes:
      finish: from machines at their end and `seen`, both with E * C lanes in the order (example, candidate), and E, to
        a tree of arrays `[C, ...]`.
      goes_on: from bool `[E]`, whether each example's own machine runs, to whether the later slots are of interest.
    """

    finish: Callable[[datapath.State, Any, int], Any]
    goes_on: Callable[[Array], Array]


class Walk(NamedTuple):
    """One walk over the slots of a program, int32.

    Attributes:
      own: the program's control words `[L]`.
      candidates: those of the instructions to try in each slot, in B blocks of C: `[L, B, C]`.
      blocks: `[L]`, how many of the blocks are tried in each slot: B or none.
      last: `[]`, in no slot from here on is anything tried.
      end: `[]`, the slots from here on are blank.
      inputs: `Value[E, 2]`.
      seen: what `finish` needs of each example, a tree of `[E]`.
    """

    own: Controls
    candidates: Controls
    blocks: Array
    last: Array
    end: Array
    inputs: Value
    seen: Any


def expand(program: Program, inputs: Value, settings: Settings = DEFAULT_SETTINGS) -> Expansion:
    """Every edit of a program, run on every input. Unbatched, made for `jax.jit` and `jax.vmap`.

    Args:
      program: int32 `[L]` fields; bad opcodes and arguments are allowed.
      inputs: `Value[E, 2]`, one example or more.
      settings: the machine's sizes.

    Raises:
      ValueError: for no examples.
    """
    chex.assert_shape([program.op, program.arg], (settings.slots,))
    chex.assert_shape(inputs.words, (None, 2, settings.width))
    programs, valid = every_edit(program, settings)
    tried = edited_slots(programs, settings)
    everywhere = jnp.ones(settings.slots, bool)
    question = Question(_outputs, jnp.any)

    def outputs(part: Value) -> Array:
        candidates = arrange(tried, part.type.shape[0], settings)
        return walk(question, program, candidates, everywhere, part, (), settings)[:, : tried.op.shape[1]]

    cells = jnp.concatenate([outputs(part) for part in _parts(inputs, EXAMPLES)], axis=2)  # [L, 44 + A, E, 1 + W]
    cells = cells.reshape(-1, *cells.shape[2:])
    return Expansion(programs, valid, Value(cells[..., 0] & 3, cells[..., 0] >> 2, cells[..., 1:]))


def every_edit(program: Program, settings: Settings = DEFAULT_SETTINGS) -> tuple[Program, Array]:
    """The program after each edit, `[N - 1, L]`, and whether the edit was valid. Unbatched."""
    actions = jnp.arange(1, settings.num_actions, dtype=jnp.int32)
    return jax.vmap(lambda action: apply_action(program, action, settings))(actions)


def edited_slots(programs: Program, settings: Settings) -> Program:
    """Of `every_edit`'s programs, the slot that each edit is about: fields `[L, 44 + A]`."""

    def edited(field: Array) -> Array:
        by_slot = field.reshape(settings.slots, -1, settings.slots)  # [L, 44 + A, L]
        return jnp.stack([by_slot[slot, :, slot] for slot in range(settings.slots)])

    return jax.tree.map(edited, programs)


def arrange(candidates: Program, examples: int, settings: Settings) -> Controls:
    """Control words of candidate instructions `[L, N]` in blocks that E examples can share: `[L, B, C]`.

    What fills the last block up is NOP.

    Raises:
      ValueError: for no examples, or too many.
    """
    if not 1 <= examples <= lowering.CHUNK:
        raise ValueError(f"{examples} examples can't be walked side by side; use 1 to {lowering.CHUNK}.")
    count = candidates.op.shape[1]
    size = _block_size(count, examples)
    blocks = -(-count // size)
    blank = jnp.zeros((settings.slots, blocks * size - count), jnp.int32)
    op, arg = (jnp.concatenate([field, blank], axis=1).reshape(settings.slots, blocks, size) for field in candidates)
    return decode(op, arg, settings)


def _block_size(count: int, examples: int) -> int:
    """Candidates in a block, of N in all: few blocks, and their lanes fill whole vectors where that is possible."""
    most = lowering.CHUNK // examples
    fits = lowering.VECTOR // math.gcd(lowering.VECTOR, examples)  # so many candidates end where a vector ends
    if fits > most:
        return min(count, most)
    blocks = -(-count // (most // fits * fits))
    return -(-count // (blocks * fits)) * fits


def walk(
    question: Question,
    program: Program,
    candidates: Controls,
    wanted: Array,
    inputs: Value,
    seen: Any,
    settings: Settings,
) -> Any:
    """Try instructions in the slots of a program and report what `finish` says of each. Unbatched; `vmap` it.

    Args:
      question: what is asked.
      program: `[L]`.
      candidates: instructions to try in each slot, `[L, B, C]` from `arrange`.
      wanted: bool `[L]`, the slots in which they are tried.
      inputs: `Value[E, 2]`, the examples that the candidates are arranged for.
      seen: a tree of arrays `[E]` for `finish`.
      settings: the machine's sizes.

    Returns:
      The tree of `finish`, its leaves `[C, ...]` now `[L, B * C, ...]`; zeros for slots that were not tried.
    """
    slots = jnp.arange(1, settings.slots + 1, dtype=jnp.int32)
    last = jnp.max(jnp.where(wanted, slots, 0))
    end = jnp.max(jnp.where(program.op != 0, slots, 0))
    blocks = jnp.where(wanted, candidates.control.shape[1], 0).astype(jnp.int32)
    one = _batchable(settings, question, lowering.available())
    found = one(Walk(decode(*program, settings), candidates, blocks, last, end, inputs, seen))
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:]), found)


def _parts(inputs: Value, size: int) -> list[Value]:
    """Examples `[E, 2]` in parts of at most `size`; at least one part."""
    firsts = range(0, max(inputs.type.shape[0], 1), size)
    return [jax.tree.map(lambda leaf, i=i: leaf[i : i + size], inputs) for i in firsts]


def _outputs(state: datapath.State, seen: Any, examples: int) -> Array:
    """The packed type and length and the words of each machine's output: int32 `[C, E, 1 + W]`."""
    output = unload(state).output
    cells = jnp.concatenate([(output.type | (output.length << 2))[:, None], output.words], axis=1)
    return jnp.swapaxes(cells.reshape(examples, -1, cells.shape[1]), 0, 1)


@functools.cache
def _batchable(settings: Settings, question: Question, chunked: bool) -> Callable[[Walk], Any]:
    """One walk, with a batching rule that turns every mapped axis into one axis of walks.

    On a CPU each walk is a small call and they come one after the other, so a walk's number of steps is its own; else
    they go side by side.
    """
    call = lowering.kept_call if chunked else lowering.direct_call
    function = functools.partial(_walk, call, settings, question)

    @custom_vmap
    def many(walks: Walk) -> Any:
        if not chunked:
            return jax.vmap(function)(walks)
        return lax.map(lambda walk: lowering.small_call(function, walk), walks)

    @custom_vmap
    def one(walk: Walk) -> Any:
        return lowering.small_call(function, walk) if chunked else function(walk)

    @many.def_vmap
    def more(size: int, mapped: Any, walks: Walk) -> Any:
        spread = _spread(size, mapped[0], walks)
        count = spread.end.shape[1]
        flat = jax.tree.map(lambda x: x.reshape(size * count, *x.shape[2:]), spread)
        result = jax.tree.map(lambda x: x.reshape(size, count, *x.shape[1:]), many(flat))
        return result, jax.tree.map(lambda _: True, result)

    @one.def_vmap
    def first(size: int, mapped: Any, walk: Walk) -> Any:
        result = many(_spread(size, mapped[0], walk))
        return result, jax.tree.map(lambda _: True, result)

    return one


def _spread(size: int, mapped: Any, walk: Walk) -> Walk:
    """Give the leaves that aren't mapped the mapped axis too."""
    return jax.tree.map(lambda is_mapped, x: x if is_mapped else jnp.broadcast_to(x, (size, *x.shape)), mapped, walk)


def _walk(call: datapath.Call, settings: Settings, question: Question, walk: Walk) -> Any:
    """What `finish` says in each slot and block: its leaves behind `[L, B]`.

    Only slices and elementwise operations: a small call takes neither gathers nor scatters.
    """
    examples, (slots, blocks, size) = walk.inputs.type.shape[0], walk.candidates.control.shape
    task = load(walk.inputs)

    def copies(x: Array) -> Array:
        return jnp.broadcast_to(x[:, None], (examples, size)).reshape(-1)  # [E] to [E * C]

    def own_at(slot: Array, lanes: int) -> Controls:
        words = (lax.dynamic_index_in_dim(x, slot) for x in walk.own)  # [1]
        return Controls(*(jnp.broadcast_to(word, (lanes,)) for word in words))

    def candidates_at(slot: Array, block: Array) -> Controls:
        words = (lax.dynamic_slice(x, (slot, block, 0), (1, 1, size)) for x in walk.candidates)
        return Controls(*(jnp.broadcast_to(x.reshape(1, size), (examples, size)).reshape(-1) for x in words))

    copied_task, copied_seen = jax.tree.map(copies, (task, walk.seen))

    def try_slot(state: datapath.State, slot: Array, found: Any) -> Any:
        copied = jax.tree.map(copies, state)

        def try_block(block: Array, found: Any) -> Any:
            tried = candidates_at(slot, block)

            def step(now: Array, machines: datapath.State) -> datapath.State:
                rest = own_at(now, size * examples)
                here = jnp.broadcast_to(now == slot, (size * examples,))
                controls = Controls(*(lax.select(here, new, own) for new, own in zip(tried, rest, strict=True)))
                return datapath.step(machines, controls, copied_task, call)

            machines = lax.fori_loop(slot, lax.max(walk.end, slot + 1), step, copied)
            said = question.finish(machines, copied_seen, examples)
            return jax.tree.map(lambda into, new: _write(into, new, slot, block), found, said)

        return lax.fori_loop(0, lax.dynamic_index_in_dim(walk.blocks, slot, keepdims=False), try_block, found)

    def go_on(carry: Any) -> Array:
        slot, state, _ = carry
        return (slot < walk.last) & question.goes_on(state.status == 0)

    def next_slot(carry: Any) -> Any:
        slot, state, found = carry
        found = try_slot(state, slot, found)
        return slot + 1, datapath.step(state, own_at(slot, examples), task, call), found

    begin = datapath.start(task, settings)
    said = jax.eval_shape(
        lambda machines, seen: question.finish(machines, seen, examples), jax.tree.map(copies, begin), copied_seen
    )
    nothing = jax.tree.map(lambda leaf: jnp.zeros((slots, blocks, *leaf.shape), leaf.dtype), said)
    return lax.while_loop(go_on, next_slot, (jnp.int32(0), begin, nothing))[2]


def _write(into: Array, new: Array, slot: Array, block: Array) -> Array:
    return lax.dynamic_update_slice(into, new[None, None], (slot, block, *(0 for _ in new.shape)))
