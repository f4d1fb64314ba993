"""Four- and eight-bit kernels: NF4 of the QLoRA paper (arXiv 2305.14314) and symmetric int8.

Kernels are `(in, out)` with any leading layer axes. Both formats are pytrees of arrays that keep those axes, so that
`lax.scan` slices a stacked kernel like a plain array and a checkpoint holds nothing but ordinary dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

Kind = Literal["int8", "nf4"]
Quant = Literal["none", "int8", "nf4"]
QUANTS: tuple[Quant, ...] = ("none", "int8", "nf4")

BLOCK = 64

# Quantiles of the standard normal distribution scaled to [-1, 1], with an exact zero (arXiv 2305.14314, appendix E).
NF4_LEVELS = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ],
    np.float32,
)
# A value takes the number of midpoints that lie below it; one that is exactly a midpoint takes the lower level.
NF4_MIDPOINTS = (NF4_LEVELS[:-1] + NF4_LEVELS[1:]) / np.float32(2)

_INT8_LARGEST = 127
# XLA may take smaller numbers for zero, whose reciprocal is not finite.
_SMALLEST_SCALE = np.finfo(np.float32).tiny


class Nf4(NamedTuple):
    """A kernel in 4-bit NormalFloat: level of the code times the scale of the block.

    Blocks are 64 consecutive inputs of one output; the last is shorter where 64 does not divide `in`. For such a
    kernel's transpose, the weight as files store it, these are the blocks, codes and scales of bitsandbytes.

    Attributes:
      codes: uint8 `[..., ceil(in / 2), out]`; the high four bits belong to the even input, the low four to the odd one.
      scales: largest magnitude of each block, float32 `[..., ceil(in / 64), out]`; a block of zeros stays exactly zero.
    """

    codes: jax.Array
    scales: jax.Array


class Int8(NamedTuple):
    """A kernel in symmetric 8-bit integers, one scale for each output.

    A value differs from the original by at most half a scale, that is 1/254 of the output's largest magnitude, plus
    float32 rounding.

    Attributes:
      codes: int8 `[..., in, out]` from -127 to 127.
      scales: largest magnitude of each output divided by 127, float32 `[..., out]`.
    """

    codes: jax.Array
    scales: jax.Array


@partial(jax.jit, static_argnames="kind")
def quantise(kernel: jax.Array, kind: Kind) -> Nf4 | Int8:
    """Quantise a float kernel `[..., in, out]`; computed in float32 whatever its dtype.

    Raises:
      ValueError: where the kind is unknown.
    """
    chex.assert_rank(kernel, {2, 3})
    wide = kernel.astype(jnp.float32)
    if kind == "nf4":
        return _to_nf4(wide)
    if kind == "int8":
        return _to_int8(wide)
    raise ValueError(f"kind is {kind!r}; use 'int8' or 'nf4'.")


def dequantise(kernel: jax.Array | Nf4 | Int8, in_features: int, dtype: DTypeLike = jnp.float32) -> jax.Array:
    """The kernel as an array `[..., in_features, out]`: code times scale in float32, then rounded to `dtype`.

    A kernel that is an array already is cast.
    """
    if isinstance(kernel, Nf4):
        levels = jnp.asarray(NF4_LEVELS)[_unpack(kernel.codes)[..., :in_features, :]]
        scales = jnp.repeat(kernel.scales, BLOCK, axis=-2)[..., :in_features, :]
        return (levels * scales).astype(dtype)
    if isinstance(kernel, Int8):
        return (kernel.codes.astype(jnp.float32) * kernel.scales[..., None, :]).astype(dtype)
    return kernel.astype(dtype)


def quantised_shapes(kind: Kind, shape: Sequence[int]) -> Nf4 | Int8:
    """Shapes and dtypes (`jax.ShapeDtypeStruct`) of a kernel of this shape once it is quantised."""
    return jax.eval_shape(partial(quantise, kind=kind), jax.ShapeDtypeStruct(tuple(shape), jnp.float32))


def _to_nf4(kernel: jax.Array) -> Nf4:
    *lead, width_in, width_out = kernel.shape
    blocks = -(-width_in // BLOCK)
    padded = _pad_inputs(kernel, blocks * BLOCK).reshape(*lead, blocks, BLOCK, width_out)
    scales = jnp.max(jnp.abs(padded), axis=-2)  # [..., blocks, out]
    scaled = padded * (1.0 / jnp.maximum(scales, _SMALLEST_SCALE))[..., None, :]
    # Fifteen comparisons that fuse into one pass; a search through a table does not.
    codes = sum((scaled > midpoint).astype(jnp.uint8) for midpoint in NF4_MIDPOINTS)
    codes = jnp.asarray(codes, jnp.uint8).reshape(*lead, blocks * BLOCK, width_out)
    pairs = codes[..., : width_in + width_in % 2, :].reshape(*lead, -1, 2, width_out)
    return Nf4(pairs[..., 0, :] << 4 | pairs[..., 1, :], scales)


def _to_int8(kernel: jax.Array) -> Int8:
    scales = jnp.max(jnp.abs(kernel), axis=-2) / _INT8_LARGEST  # [..., out]
    scaled = kernel / jnp.maximum(scales, _SMALLEST_SCALE)[..., None, :]
    return Int8(jnp.clip(jnp.round(scaled), -_INT8_LARGEST, _INT8_LARGEST).astype(jnp.int8), scales)


def _pad_inputs(kernel: jax.Array, width: int) -> jax.Array:
    """Zeros after the last input, up to `width` inputs."""
    short = width - kernel.shape[-2]
    return jnp.pad(kernel, [(0, 0)] * (kernel.ndim - 2) + [(0, short), (0, 0)]) if short else kernel


def _unpack(codes: jax.Array) -> jax.Array:
    """Two codes of each byte, `[..., n, out]` to `[..., 2 * n, out]`."""
    *lead, pairs, width_out = codes.shape
    return jnp.stack((codes >> 4, codes & 15), axis=-2).reshape(*lead, 2 * pairs, width_out)
