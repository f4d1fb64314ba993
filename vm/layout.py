"""Other layouts of a program that mean the same: blank slots between its instructions."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from vm.isa import OPCODE_OF
from vm.types import DEFAULT_SETTINGS, Program, Settings


def insert_gaps(
    programs: tuple[Program, ...], key: jax.Array, settings: Settings = DEFAULT_SETTINGS
) -> tuple[Program, ...]:
    """Put the same blank slots (NOP 0) into each of several programs; none means anything else afterwards. Unbatched.

    As many as fit behind the last slot that one of the programs uses are drawn evenly, from none to all of them, and so
    are their places.

    Args:
      programs: `[L]` each.
      key: a typed key.
      settings: static sizes.
    """
    slots = settings.slots
    slot = jnp.arange(slots, dtype=jnp.int32)
    nop = jnp.int32(OPCODE_OF["NOP"])
    taken = jnp.zeros(slots, bool)
    for program in programs:
        chex.assert_shape([program.op, program.arg], (slots,))
        taken = taken | (program.op != nop) | (program.arg != 0)
    used = jnp.max(jnp.where(taken, slot + 1, 0))
    count_key, place_key = jax.random.split(key)
    count = jax.random.randint(count_key, (), 0, slots - used + 1)
    noise = jnp.where(slot < used + count, jax.random.uniform(place_key, (slots,)), 2.0)
    blank = jnp.argsort(jnp.argsort(noise)) < count
    source = jnp.clip(slot - jnp.cumsum(blank), 0, slots - 1)

    def spread(program: Program) -> Program:
        return Program(jnp.where(blank, nop, program.op[source]), jnp.where(blank, 0, program.arg[source]))

    return tuple(spread(program) for program in programs)


def close_gaps(program: Program, settings: Settings = DEFAULT_SETTINGS) -> tuple[Program, jax.Array]:
    """A program with its NOPs moved behind its instructions, and the number of instructions. Unbatched.

    Args:
      program: `[L]`.
      settings: static sizes.

    Returns:
      `Program[L]` from slot 0 with blank slots behind, and int32 `[]`.
    """
    chex.assert_shape([program.op, program.arg], (settings.slots,))
    nop = jnp.int32(OPCODE_OF["NOP"])
    blank = program.op == nop
    order = jnp.argsort(blank, stable=True)
    length = jnp.sum(~blank, dtype=jnp.int32)
    kept = jnp.arange(settings.slots, dtype=jnp.int32) < length
    closed = Program(jnp.where(kept, program.op[order], nop), jnp.where(kept, program.arg[order], 0))
    return closed, length
