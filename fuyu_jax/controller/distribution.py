"""The policy as one distribution over the flat actions: STOP from its own head, allowed edits normalised together."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

NEVER = -1e9  # log-probability of what is not allowed: exp gives exactly 0, and differences stay finite


def masked_log_softmax(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Log-softmax over the allowed entries of the last axis; `NEVER` elsewhere, and everywhere when none is allowed."""
    chex.assert_equal_shape([logits, allowed])
    inside = jnp.where(allowed, logits, NEVER)
    return jnp.where(allowed, jax.nn.log_softmax(inside, axis=-1), NEVER)


def action_log_probs(stop_logit: jax.Array, edit_logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Log-probabilities of all actions: log p(edit) = log(1 - P(STOP)) + log p(edit | not STOP).

    Args:
      stop_logit: float32 `[...]`.
      edit_logits: float32 `[..., N - 1]`.
      allowed: bool `[..., N - 1]`, the valid edits, less those ruled out.

    Returns:
      float32 `[..., N]`; index 0 is STOP.
    """
    go = jax.nn.log_sigmoid(-stop_logit)[..., None]
    edits = jnp.where(allowed, masked_log_softmax(edit_logits, allowed) + go, NEVER)
    return jnp.concatenate([jax.nn.log_sigmoid(stop_logit)[..., None], edits], axis=-1)


def choose_edit(logits: jax.Array, allowed: jax.Array, noise: jax.Array | None = None) -> jax.Array:
    """Pick a flat action among the allowed edits: the best, ties to the lowest index.

    Args:
      logits: float32 `[..., N - 1]`.
      allowed: bool `[..., N - 1]`.
      noise: standard Gumbel noise like `logits`, with which the choice is a sample from the masked softmax
        (Gumbel-max trick); none takes the best.

    Returns:
      int32 `[...]` in 1..N-1, or -1, which is no action at all, where nothing is allowed.
    """
    scores = logits if noise is None else logits + noise
    best = jnp.argmax(jnp.where(allowed, scores, NEVER), axis=-1).astype(jnp.int32) + 1
    return jnp.where(jnp.any(allowed, axis=-1), best, -1)


def sample_distinct(key: jax.Array, log_probs: jax.Array, allowed: jax.Array, count: int) -> jax.Array:
    """Sample different entries one after the other, each in proportion to its probability among those that are left.

    All at once, by Gumbel noise (Gumbel-top-k trick, Kool et al., arXiv 1903.06059).

    Args:
      key: typed key.
      log_probs: float32 `[..., N]`, up to a constant.
      allowed: bool `[..., N]`, the entries that may be sampled.
      count: static number C, at most N.

    Returns:
      int32 `[..., C]` in the order of sampling; -1 at the end where fewer are allowed.
    """
    chex.assert_equal_shape([log_probs, allowed])
    scores = jnp.where(allowed, log_probs + jax.random.gumbel(key, log_probs.shape), -jnp.inf)
    best, index = jax.lax.top_k(scores, count)
    return jnp.where(best > -jnp.inf, index.astype(jnp.int32), -1)
