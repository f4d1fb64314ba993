"""How well a heuristic ranks: of siblings in a search, of what can be repaired soon, and how far its word is true."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

BINS = 10


def sibling_rank_correlation(
    parent: jax.Array, predicted: jax.Array, true: jax.Array, counts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Kendall's tau between predicted and true distances of programs with one parent, over pairs that truly differ.

    A pair that is predicted equal counts as half right. 1 is a perfect order, 0 what chance gives.

    Args:
      parent: int32 `[..., S]`, which program each was made from.
      predicted: float32 `[..., S]`.
      true: int32 `[..., S]`.
      counts: bool `[..., S]`, those that take part.

    Returns:
      float32 `[]`, the correlation, 0 without a pair; and float32 `[]`, the number of pairs.
    """
    chex.assert_equal_shape([parent, predicted, true, counts])
    both = lambda leaf: (leaf[..., :, None], leaf[..., None, :])  # noqa: E731
    (p, q), (a, b), (m, n) = both(parent), both(true), both(counts)
    pair = (p == q) & (a < b) & m & n  # each pair once, the truly nearer first
    first, second = both(predicted)
    agreement = jnp.sign(second - first)
    pairs = jnp.sum(pair).astype(jnp.float32)
    return jnp.sum(jnp.where(pair, agreement, 0.0)) / jnp.maximum(pairs, 1.0), pairs


def area_under_roc(score: jax.Array, positive: jax.Array, counts: jax.Array) -> jax.Array:
    """Chance that a positive entry scores above a negative one, ties half: float32 `[]`, 0.5 where one kind is absent.

    Args:
      score: float32 `[M]`.
      positive: bool `[M]`.
      counts: bool `[M]`, the entries that take part.
    """
    chex.assert_equal_shape([score, positive, counts])
    yes, no = positive & counts, ~positive & counts
    ordered = jnp.sort(jnp.where(no, score, jnp.inf))
    below = jnp.searchsorted(ordered, score, side="left")
    upto = jnp.searchsorted(ordered, score, side="right")
    wins = jnp.sum(jnp.where(yes, 0.5 * (below + upto), 0.0))
    pairs = jnp.sum(yes).astype(jnp.float32) * jnp.sum(no)
    return jnp.where(pairs > 0, wins / jnp.maximum(pairs, 1.0), 0.5)


def calibration_error(probability: jax.Array, event: jax.Array, mask: jax.Array) -> jax.Array:
    """Expected calibration error (Guo et al., 2017, arXiv 1706.04599), ten bins of equal width: float32 `[]`.

    The mean gap between probability and frequency over bins, weighted by their size; float32, bool and bool `[...]`.
    """
    bins = jnp.clip((probability * BINS).astype(jnp.int32), 0, BINS - 1)
    member = jax.nn.one_hot(bins, BINS) * mask[..., None]  # [..., BINS]
    axes = tuple(range(member.ndim - 1))
    gap = jnp.sum(member * (event.astype(jnp.float32) - probability)[..., None], axis=axes)
    return jnp.sum(jnp.abs(gap)) / jnp.maximum(jnp.sum(mask), 1)
