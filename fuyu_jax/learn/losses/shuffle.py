"""Controls: an arm's own signal handed to the wrong owners, so that only what it says is lost, not how it looks.

Permutations are one random cycle through all entries that count: nobody keeps what it had, the multiset stays as it
is, and entries that don't count neither give nor get. With a single entry there is nobody to swap with and it stays.
Signals of few entries become opposite signals, not noise, so permute over as many entries as make sense.
"""

from __future__ import annotations

from typing import TypeVar

import chex
import jax
import jax.numpy as jnp

Tree = TypeVar("Tree")  # a pytree of arrays


def random_cycle(key: jax.Array, counts: jax.Array) -> jax.Array:
    """For each of M entries, whose value it gets: a uniformly random cycle through those that count.

    Args:
      key: typed key.
      counts: bool `[M]`.

    Returns:
      int32 `[M]`, a permutation of 0..M-1; entries that don't count get their own.
    """
    chex.assert_rank(counts, 1)
    position = jnp.arange(counts.shape[0], dtype=jnp.int32)
    order = jnp.argsort(jnp.where(counts, jax.random.uniform(key, counts.shape), 2.0)).astype(jnp.int32)
    total = jnp.sum(counts, dtype=jnp.int32)
    following = jnp.where(position + 1 < total, position + 1, 0)
    donor = jnp.where(position < total, order[following], order)
    return jnp.zeros_like(order).at[order].set(donor)


def shuffle_entries(key: jax.Array, values: Tree, counts: jax.Array) -> Tree:
    """Permute whole entries of a pytree among those that count.

    For rewards among the trajectories of a batch (`counts` bool `[B, G]`), solutions among tasks (`[B]`) or value
    targets among states (`[B, S]`).

    Args:
      key: typed key.
      values: arrays `[*counts.shape, ...]`; all leaves move together.
      counts: bool `[...]`, the entries that take part.
    """
    donor = random_cycle(key, counts.reshape(-1))

    def move(leaf: jax.Array) -> jax.Array:
        chex.assert_equal_shape_prefix([leaf, counts], counts.ndim)
        return leaf.reshape(-1, *leaf.shape[counts.ndim :])[donor].reshape(leaf.shape)

    return jax.tree.map(move, values)


def shuffle_within(key: jax.Array, values: jax.Array, counts: jax.Array) -> jax.Array:
    """Permute each row `[..., N]` among its own entries that count: the advantages among the actions of a state."""
    chex.assert_equal_shape([values, counts])
    rows = counts.reshape(-1, counts.shape[-1])
    donors = jax.vmap(random_cycle)(jax.random.split(key, rows.shape[0]), rows)
    return jnp.take_along_axis(values, donors.reshape(counts.shape), axis=-1)


def random_half(key: jax.Array, counts: jax.Array) -> jax.Array:
    """Half of the entries that count, at random and rounded up: the preference pairs whose labels are to be swapped.

    Swapping every label would teach the opposite; with half of them the labels say nothing.

    Args:
      key: typed key.
      counts: bool `[...]`.

    Returns:
      bool `[...]`.
    """
    noise = jnp.where(counts, jax.random.uniform(key, counts.shape), 2.0).reshape(-1)
    rank = jnp.argsort(jnp.argsort(noise))
    return (2 * rank < jnp.sum(counts)).reshape(counts.shape)
