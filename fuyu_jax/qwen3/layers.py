"""The arithmetic of a Qwen3 decoder layer as pure functions of arrays.

Tokens come as `[B, S, N, d]`: S independent segments of N tokens for each of B prompts. A plain sequence is the case
S = 1 without a prompt. Kernels are `(in, out)`. Sources: Qwen3 technical report (arXiv 2505.09388), RMSNorm
(arXiv 1910.07467), RoPE (arXiv 2104.09864), grouped-query attention (arXiv 2305.13245), SwiGLU (arXiv 2002.05202).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuyu_jax.qwen3.config import Qwen3Config
from fuyu_jax.qwen3.quantisation import Int8, Nf4, dequantise

# Score of a masked key. Finite, so that a row with nothing to attend to has a softmax and a gradient.
_MASKED = float(np.finfo(np.float32).min)


@partial(jax.tree_util.register_dataclass, data_fields=("base", "a", "b"), meta_fields=("scale",))
@dataclass(frozen=True)
class Adapted:
    """A frozen kernel with a low-rank adapter (LoRA, arXiv 2106.09685): it stands for `base + scale * a @ b`.

    Attributes:
      base: the frozen kernel, `(in, out)`, quantised or not.
      a: float32 `[in, rank]`.
      b: float32 `[rank, out]`.
      scale: alpha / rank; static.
    """

    base: jax.Array | Nf4 | Int8
    a: jax.Array
    b: jax.Array
    scale: float


Kernel = jax.Array | Nf4 | Int8 | Adapted


class LayerWeights(NamedTuple):
    """Weights of one decoder layer; with a leading axis on every leaf, of all layers."""

    input_norm: jax.Array  # [d]
    q_proj: Kernel  # [d, H * D]
    k_proj: Kernel  # [d, Hkv * D]
    v_proj: Kernel  # [d, Hkv * D]
    q_norm: jax.Array  # [D]
    k_norm: jax.Array  # [D]
    o_proj: Kernel  # [H * D, d]
    post_attention_norm: jax.Array  # [d]
    gate_proj: Kernel  # [d, F]
    up_proj: Kernel  # [d, F]
    down_proj: Kernel  # [F, d]


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def layer_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Shape of each weight of one layer, under its name in `LayerWeights`."""
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    return {
        "input_norm": (width,),
        "q_proj": (width, queries),
        "k_proj": (width, keys),
        "v_proj": (width, keys),
        "q_norm": (head,),
        "k_norm": (head,),
        "o_proj": (queries, width),
        "post_attention_norm": (width,),
        "gate_proj": (width, inner),
        "up_proj": (width, inner),
        "down_proj": (inner, width),
    }


class KeyValues(NamedTuple):
    """Keys (after norm and RoPE) and values of tokens: `[..., T, Hkv, D]` each."""

    keys: jax.Array
    values: jax.Array


def project(x: jax.Array, kernel: Kernel) -> jax.Array:
    """`x @ kernel` in the dtype of `x`: `[..., in]` times `(in, out)` gives `[..., out]`.

    A plain array is trained: its gradient is accumulated in its own dtype. A quantised kernel and the base of an
    adapter are frozen: gradients pass through them to `x` and none is made for them.
    """
    if isinstance(kernel, Adapted):
        update = project(kernel.scale * project(x, kernel.a), kernel.b)
        return _project_frozen(x.shape[-1], x, kernel.base) + update
    if isinstance(kernel, Nf4 | Int8):
        return _project_frozen(x.shape[-1], x, kernel)
    return _project_trained(x, kernel)


@jax.custom_vjp
def _project_trained(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The product with a kernel that gets a gradient.

    Its rule is spelt out because the automatic one puts the cotangent on the left of the product and so makes XLA
    transpose it, which costs a quarter of a training step on a CPU; the input on the left is narrower and shared by
    several projections.
    """
    return x @ kernel.astype(x.dtype)


def _trained_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _project_trained(x, kernel), (x, kernel)


def _trained_backward(saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    width_in, width_out = kernel.shape
    rows, grad_rows = x.reshape(-1, width_in), grad.reshape(-1, width_out)
    grad_kernel = jax.lax.dot_general(rows, grad_rows, (((0,), (0,)), ((), ())), preferred_element_type=kernel.dtype)
    return grad @ kernel.astype(grad.dtype).T, grad_kernel


_project_trained.defvjp(_trained_forward, _trained_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _project_frozen(width_in: int, x: jax.Array, kernel: jax.Array | Nf4 | Int8) -> jax.Array:
    """The product with a kernel that gets no gradient.

    The backward pass dequantises again: it keeps the codes, which lie in memory anyway, and never the wide kernel.
    """
    return x @ dequantise(kernel, width_in, x.dtype)


def _frozen_forward(
    width_in: int, x: jax.Array, kernel: jax.Array | Nf4 | Int8
) -> tuple[jax.Array, jax.Array | Nf4 | Int8]:
    return _project_frozen(width_in, x, kernel), kernel


def _frozen_backward(width_in: int, kernel: jax.Array | Nf4 | Int8, grad: jax.Array) -> tuple[jax.Array, None]:
    return grad @ dequantise(kernel, width_in, grad.dtype).T, None


_project_frozen.defvjp(_frozen_forward, _frozen_backward)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis, in the dtype of `x`.

    The mean square is float32; the normalised value is cast back before it meets `scale`, as in the reference model.
    """
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * jnp.expand_dims(scale.astype(x.dtype), tuple(range(x.ndim - 1)))


def rope_angles(positions: jax.Array, config: Qwen3Config) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary phases, float32 `[..., D / 2]`, of int32 positions `[...]`."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = jnp.asarray(1.0 / np.float32(config.rope_theta) ** exponents)  # [D / 2]
    frequencies = jnp.expand_dims(frequencies, tuple(range(positions.ndim)))
    phases = positions[..., None].astype(jnp.float32) * frequencies  # [..., D / 2]
    return jnp.cos(phases), jnp.sin(phases)


def apply_rope(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate heads `[..., heads, D]` by phases `[..., D / 2]`; element i pairs with element i + D / 2. Float32."""
    cos, sin = (a[..., None, :] for a in angles)  # [..., 1, D / 2]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def attend(
    queries: jax.Array, own: KeyValues, own_mask: jax.Array, prompt: KeyValues | None, prompt_mask: jax.Array | None
) -> jax.Array:
    """Grouped-query attention of segments over their prompt and themselves, with one softmax over both.

    Args:
      queries: scaled queries `[B, S, N, H, D]`; query head h reads key/value head h // (H / Hkv).
      own: keys and values of the segments, `[B, S, N, Hkv, D]`.
      own_mask: bool `[B or 1, S or 1, N, N]`, True where row i attends to token j of its segment. A row with nothing
        to attend to (padding) gets the mean of all values: finite, and read by no other row.
      prompt: keys and values of the prompts, `[B, P, Hkv, D]`, shared by the S segments.
      prompt_mask: bool `[B, P]`, True at the prompt's real tokens.

    Returns:
      `[B, S, N, H, D]`, in the dtype of the queries.
    """
    batch, segments, length, heads, width = queries.shape
    kv_heads = own.keys.shape[3]
    # Heads first, so that every product below is a plain batched matrix product and no score is ever transposed.
    grouped = queries.reshape(batch, segments, length, kv_heads, heads // kv_heads, width)
    grouped = grouped.transpose(0, 3, 1, 4, 2, 5)  # [B, Hkv, S, G, N, D]
    to_own = grouped.reshape(batch, kv_heads, segments, -1, width)  # [B, Hkv, S, G * N, D]
    to_prompt = grouped.reshape(batch, kv_heads, -1, width)  # [B, Hkv, S * G * N, D]
    shape = grouped.shape[:-1]

    keys, values = (a.transpose(0, 3, 1, 2, 4) for a in own)  # [B, Hkv, S, N, D]
    parts = [(_scores(to_own, keys, shape, own_mask[:, None, :, None]), to_own.shape, values)]
    if prompt is not None and prompt_mask is not None:
        keys, values = (a.transpose(0, 2, 1, 3) for a in prompt)  # [B, Hkv, P, D]
        mask = prompt_mask[:, None, None, None, None]
        parts.append((_scores(to_prompt, keys, shape, mask), to_prompt.shape, values))

    # The softmax is divided out after the values are summed: its backward pass then touches each score once.
    peak = jnp.max(jnp.stack([jnp.max(scores, axis=-1) for scores, _, _ in parts]), axis=0)
    peak = jax.lax.stop_gradient(peak)[..., None]  # [B, Hkv, S, G, N, 1]
    total, mixed = jnp.zeros_like(peak), jnp.zeros(grouped.shape, jnp.float32)
    for scores, flat, values in parts:
        weights = jnp.exp(scores - peak)
        total += jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights.astype(values.dtype).reshape(*flat[:-1], -1)
        mixed += jnp.matmul(weights, values, preferred_element_type=jnp.float32).reshape(grouped.shape)
    mixed = (mixed / total).astype(queries.dtype)
    return mixed.transpose(0, 2, 4, 1, 3, 5).reshape(queries.shape)


def _scores(queries: jax.Array, keys: jax.Array, shape: tuple[int, ...], mask: jax.Array) -> jax.Array:
    """Masked scores, float32, of queries `[..., rows, D]` and keys `[..., T, D]`, reshaped to `[*shape, T]`."""
    scores = jnp.matmul(queries, keys.swapaxes(-1, -2), preferred_element_type=jnp.float32)
    return jnp.where(mask, scores.reshape(*shape, -1), _MASKED)


def decoder_layer(
    x: jax.Array,
    weights: LayerWeights,
    angles: tuple[jax.Array, jax.Array],
    own_mask: jax.Array,
    prompt: KeyValues | None,
    prompt_mask: jax.Array | None,
    config: Qwen3Config,
) -> tuple[jax.Array, KeyValues]:
    """One pre-norm decoder layer: attention, then SwiGLU, each added to the residual stream.

    Args:
      x: tokens `[B, S, N, d]`.
      weights: this layer's weights.
      angles: cosine and sine `[B, S or 1, N, D / 2]` of the tokens' positions.
      own_mask: as in `attend`.
      prompt: as in `attend`.
      prompt_mask: as in `attend`.
      config: sizes.

    Returns:
      The new `[B, S, N, d]`, and this layer's keys and values `[B, S, N, Hkv, D]`.
    """
    batch, segments, length, _ = x.shape
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps = config.rms_norm_eps

    normed = rms_norm(x, weights.input_norm, eps)
    q = project(normed, weights.q_proj).reshape(batch, segments, length, heads, width)
    k = project(normed, weights.k_proj).reshape(batch, segments, length, kv_heads, width)
    v = project(normed, weights.v_proj).reshape(batch, segments, length, kv_heads, width)
    # The 1 / sqrt(D) of the scores goes into the queries, where it is cheaper and still float32.
    q = (apply_rope(rms_norm(q, weights.q_norm, eps), angles) * width**-0.5).astype(x.dtype)
    own = KeyValues(apply_rope(rms_norm(k, weights.k_norm, eps), angles).astype(x.dtype), v)
    mixed = attend(q, own, own_mask, prompt, prompt_mask)
    x = x + project(mixed.reshape(batch, segments, length, heads * width), weights.o_proj)

    normed = rms_norm(x, weights.post_attention_norm, eps)
    gated = jax.nn.silu(project(normed, weights.gate_proj)) * project(normed, weights.up_proj)
    return x + project(gated, weights.down_proj), own
