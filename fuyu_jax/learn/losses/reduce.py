"""Means over the entries that count, whole or in parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def shares(mask: jax.Array) -> jax.Array:
    """Weights `[...]` (bool, or float32 of at least 0) divided by their sum: float32 `[...]`, all 0 where none counts.

    A mean is the sum of values times their shares, and so can be added up from the parts of a batch.
    """
    weights = mask.astype(jnp.float32)
    return weights / jnp.maximum(jnp.sum(weights), 1e-9)


def weighted_sum(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum of values times weights, float32 `[...]` each.

    Values of weight 0 are replaced before they are summed: NaN times 0 is NaN, in the gradient too.
    """
    return jnp.sum(jnp.where(weights > 0, values, 0.0) * weights)


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of `values` where `mask` (bool, or float32 weights of at least 0) holds, 0 where it holds nowhere."""
    return weighted_sum(values, shares(jnp.broadcast_to(mask, values.shape)))
