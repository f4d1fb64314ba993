"""ECHO: predicting the observation that an edit causes, beside choosing the edit (Microsoft, arXiv 2605.24517)."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import optax

from fuyu_jax.controller.heads import BYTES, Echo
from vm.types import Value


def word_bytes(words: jax.Array) -> jax.Array:
    """The four bytes of each 32-bit word, lowest first: int32 `[...]` to `[..., 4]`, each 0..255."""
    shifts = (8 * jnp.arange(BYTES, dtype=jnp.int32)).reshape((1,) * words.ndim + (-1,))
    return (words[..., None] >> shifts) & 255


def likeliest_outputs(echo: Echo) -> tuple[Value, jax.Array]:
    """What ECHO predicts: the likeliest `Value[..., E]` and status int32 `[..., E]`, each part taken for itself."""
    shifts = 8 * jnp.arange(BYTES, dtype=jnp.int32)
    parts = jnp.argmax(echo.bytes, axis=-1).astype(jnp.int32)  # [..., E, W, 4]
    words = jnp.sum(parts << shifts.reshape((1,) * (parts.ndim - 1) + (-1,)), axis=-1, dtype=jnp.int32)
    kind, length, status = (
        jnp.argmax(logits, axis=-1).astype(jnp.int32) for logits in (echo.type, echo.length, echo.status)
    )
    return Value(kind, length, words), status


def echo_loss(echo: Echo, outputs: Value, status: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy of the next outputs, and whether the whole prediction is right.

    Args:
      echo: logits for each public example, leading axes `[..., E]`.
      outputs: `Value[..., E]`, what the edited program gives.
      status: int32 `[..., E]`, how it ended.

    Returns:
      loss float32 `[...]`: over the examples, the mean of status + type + length + mean over words of the sum over
      bytes, in nats; and right bool `[...]`: every part of every example is the likeliest.
    """
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    target_bytes = word_bytes(outputs.words)  # [..., E, W, 4]
    chex.assert_equal_shape_prefix([echo.bytes, target_bytes], target_bytes.ndim)
    parts = ((echo.status, status), (echo.type, outputs.type), (echo.length, outputs.length))
    loss = sum((cross_entropy(logits, label) for logits, label in parts), jnp.zeros(status.shape))
    loss = loss + jnp.mean(jnp.sum(cross_entropy(echo.bytes, target_bytes), axis=-1), axis=-1)
    right = jnp.all(jnp.argmax(echo.bytes, axis=-1) == target_bytes, axis=(-2, -1))
    for logits, label in parts:
        right = right & (jnp.argmax(logits, axis=-1) == label)
    return jnp.mean(loss, axis=-1), jnp.all(right, axis=-1)
