"""A queue of fixed size for each task: the programs that were proposed and not tried yet, the best of them first.

Where it is full the worst make room. A queue as long as the budget loses nothing by that: what has as many better ones
before it as there are programs left to try is never tried (up to the order of equal priorities).
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from vm.isa import OPCODES
from vm.types import Program, Settings

OP_BITS, ARG_BITS = 6, 4  # of an opcode and an argument in a key
SLOTS_A_WORD = 32 // (OP_BITS + ARG_BITS)

assert len(OPCODES) <= 1 << OP_BITS

Array = jax.Array


class Entries(NamedTuple):
    """Proposed programs, M of them.

    Attributes:
      key: int32 `[M, W]`, the program, see `pack`.
      parent: int32 `[M]`, which of the programs tried it was proposed from, -1 for none.
      action: int32 `[M]`, the edit that made it, 0 for none.
      edits: int32 `[M]`, edits on its path.
      log_prob: float32 `[M]`, of its path.
      priority: float32 `[M]`, the lowest is taken first; infinite where there is no entry.
      order: int32 `[M]`, of two with one priority the lower is taken first.
    """

    key: Array
    parent: Array
    action: Array
    edits: Array
    log_prob: Array
    priority: Array
    order: Array


def pack(program: Program, settings: Settings) -> Array:
    """A program of valid instructions as a few words, different for different programs: int32 `[..., W]`."""
    slots = (program.op << ARG_BITS) | program.arg  # [..., L]
    missing = -settings.slots % SLOTS_A_WORD
    slots = jnp.concatenate([slots, jnp.zeros((*slots.shape[:-1], missing), jnp.int32)], axis=-1)
    by_word = slots.reshape(*slots.shape[:-1], -1, SLOTS_A_WORD)
    width = OP_BITS + ARG_BITS
    words = by_word[..., 0]
    for place in range(1, SLOTS_A_WORD):
        words = words | (by_word[..., place] << (place * width))
    return words


def unpack(key: Array, settings: Settings) -> Program:
    """The program of a key: int32 `[..., W]` to fields `[..., L]`."""
    width = OP_BITS + ARG_BITS
    places = [(key >> (place * width)) & ((1 << width) - 1) for place in range(SLOTS_A_WORD)]
    slots = jnp.stack(places, axis=-1).reshape(*key.shape[:-1], -1)[..., : settings.slots]
    return Program(slots >> ARG_BITS, slots & ((1 << ARG_BITS) - 1))


def empty(size: int, words: int) -> Entries:
    """A queue of M free places for programs of W words. Unbatched."""
    zeros = jnp.zeros(size, jnp.int32)
    free = jnp.full(size, jnp.inf, jnp.float32)
    return Entries(jnp.zeros((size, words), jnp.int32), zeros - 1, zeros, zeros, jnp.zeros(size), free, zeros)


def with_root(queue: Entries, key: Array, wanted: Array) -> Entries:
    """The queue with a start program alone where that is wanted, bool `[]`, else as it is. Unbatched."""
    free = jnp.where(wanted, jnp.inf, queue.priority)
    none, nothing = jnp.int32(0), jnp.float32(0)
    root = Entries(key, jnp.int32(-1), none, none, nothing, nothing, none)
    place = jnp.where(wanted, 0, queue.priority.shape[0])
    queue = queue._replace(priority=free)
    return jax.tree.map(lambda leaf, new: leaf.at[place].set(new, mode="drop"), queue, root)


def pop(queue: Entries) -> tuple[Entries, Entries, Array]:
    """The best entry (fields `[...]`), the queue without it, and whether there was one: bool `[]`. Unbatched."""
    best = jnp.min(queue.priority)
    last = jnp.iinfo(jnp.int32).max
    place = jnp.argmin(jnp.where(queue.priority == best, queue.order, last))
    entry = jax.tree.map(lambda leaf: leaf[place], queue)
    return entry, queue._replace(priority=queue.priority.at[place].set(jnp.inf)), best < jnp.inf


def push(queue: Entries, entries: Entries, wanted: Array) -> Entries:
    """The queue with those of K entries that are wanted, bool `[K]`. Unbatched.

    The entries must be of different programs. Of two entries of one program the better stays, the older where both are
    as good.
    """
    chex.assert_equal_shape([entries.priority, wanted])
    size, count = queue.priority.shape[0], min(entries.priority.shape[0], queue.priority.shape[0])
    same = same_keys(entries.key, queue.key) & (queue.priority < jnp.inf)[None]  # [K, M]
    better = entries.priority[:, None] < queue.priority[None]
    wanted = wanted & ~jnp.any(same & ~better, axis=1)
    freed = jnp.any(same & wanted[:, None], axis=0)
    left = jnp.where(freed, jnp.inf, queue.priority)
    # The best entry goes where the worst is, and so on, as long as it is better.
    ranked, which = jax.lax.top_k(jnp.where(wanted, -entries.priority, -jnp.inf), count)
    worst, place = jax.lax.top_k(left, count)
    place = jnp.where(-ranked < worst, place, size)  # what lies outside is not written
    queue = queue._replace(priority=left)
    return jax.tree.map(lambda leaf, new: leaf.at[place].set(new[which], mode="drop"), queue, entries)


def same_keys(left: Array, right: Array) -> Array:
    """Which keys are equal: int32 `[K, W]` and `[M, W]` to bool `[K, M]`."""
    equal = left[:, None, 0] == right[None, :, 0]
    for word in range(1, left.shape[1]):
        equal = equal & (left[:, None, word] == right[None, :, word])
    return equal
