"""Means over the entries that count."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of `values` where `mask` holds, 0 where it holds nowhere.

    Values outside the mask are replaced before they are summed: NaN times 0 is NaN, in the gradient too.

    Args:
      values: float32 `[...]`.
      mask: bool `[...]`, or float32 weights of at least 0.
    """
    weights = jnp.broadcast_to(mask, values.shape).astype(values.dtype)
    total = jnp.sum(jnp.where(weights > 0, values, 0.0) * weights)
    return total / jnp.maximum(jnp.sum(weights), 1e-9)
