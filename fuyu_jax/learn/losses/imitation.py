"""Losses against a teacher's labels: which edits are right, whether the program is solved, how far it is."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import optax

from fuyu_jax.controller.distribution import NEVER, masked_log_softmax
from fuyu_jax.controller.heads import DISTANCE_CLASSES


def teacher_set_loss(edit_logits: jax.Array, allowed: jax.Array, teacher: jax.Array) -> jax.Array:
    """Minus the log of the probability given to the whole teacher set, given that the policy does not stop.

    Any division of the mass among equally good edits costs the same, so the policy may choose its own order.

    Args:
      edit_logits: float32 `[..., N - 1]`.
      allowed: bool `[..., N - 1]`, the valid edits.
      teacher: bool `[..., N - 1]`, the good ones; where there is none the loss is 0.

    Returns:
      float32 `[...]`, in nats.
    """
    chex.assert_equal_shape([edit_logits, allowed, teacher])
    log_probs = masked_log_softmax(edit_logits, allowed)
    some = jnp.any(teacher, axis=-1)
    good = jax.nn.logsumexp(jnp.where(teacher, log_probs, NEVER), axis=-1)
    return jnp.where(some, -good, 0.0)


def decision_loss(log_probs: jax.Array, teacher: jax.Array, solved: jax.Array) -> jax.Array:
    """Cross-entropy with a joint STOP: minus the log of the probability of STOP where solved, else of the teacher set.

    Args:
      log_probs: float32 `[..., N]`, of all actions.
      teacher: bool `[..., N - 1]`, the good edits; where none is known any edit is better than STOP.
      solved: bool `[...]`.

    Returns:
      float32 `[...]`, in nats.
    """
    chex.assert_equal_shape([log_probs[..., 1:], teacher])
    good = teacher | ~jnp.any(teacher, axis=-1, keepdims=True)
    edits = jax.nn.logsumexp(jnp.where(good, log_probs[..., 1:], NEVER), axis=-1)
    return -jnp.where(solved, log_probs[..., 0], edits)


def stop_weights(solved: jax.Array, mask: jax.Array, balance: float, caution: float) -> jax.Array:
    """Weights of states in the cross-entropy of P(solved): classes drawn toward equal totals, false STOPs made dear.

    A policy that knows no better than that a state is solved with probability p says
    P(STOP) = p r / (p r + caution (1 - p)), where r is 1 without balance and (unsolved / solved) states with all of it.

    Args:
      solved: bool `[...]`.
      mask: bool `[...]`, the states that count.
      balance: 0 leaves the classes as they come, 1 gives both the same total weight, between is between.
      caution: how many times as much a false STOP weighs as a missed one.

    Returns:
      float32 `[...]`: `caution` for unsolved states, 0 for those that don't count.
    """
    chex.assert_equal_shape([solved, mask])
    positives = jnp.sum(mask & solved).astype(jnp.float32)
    negatives = jnp.sum(mask & ~solved).astype(jnp.float32)
    ratio = jnp.maximum(negatives, 1.0) / jnp.maximum(positives, 1.0)
    return jnp.where(solved, ratio**balance, caution) * mask


def distance_loss(distance_logits: jax.Array, distance: jax.Array) -> jax.Array:
    """Cross-entropy of the distance as a class: 0..16 edits, and more. `[..., 18]` and int32 `[...]` to `[...]`."""
    return optax.softmax_cross_entropy_with_integer_labels(distance_logits, jnp.clip(distance, 0, DISTANCE_CLASSES - 1))
