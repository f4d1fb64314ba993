"""What a program does on a fixed probe set, as a hash; the hash alone decides the split a program belongs to.

So no behaviour can occur in two splits, however long the streams run and whatever the data seed is.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vm.grammar import SIGNATURES
from vm.machine import run
from vm.types import Program, Settings, Type, Value

PROBES = 64
LOWEST, HIGHEST = -20, 40  # range of the numbers in inputs

SPLITS = ("train", "val_mixed", "fresh_standard", "fresh_paraphrase", "fresh_paired", "hard_composition")
EVALUATION_SPLITS = SPLITS[1:]
# Shares of the behaviours, in 1/32. Pairs need two programs of one class, so they get more.
_SHARES = {
    "train": 18,
    "val_mixed": 2,
    "fresh_standard": 2,
    "fresh_paraphrase": 2,
    "fresh_paired": 5,
    "hard_composition": 3,
}
SPLIT_OF_CLASS = np.repeat(np.arange(len(SPLITS), dtype=np.int32), [_SHARES[split] for split in SPLITS])  # [32]


def _mix(bits: Any) -> Any:
    """MurmurHash3's finaliser (Appleby, 2011) on a uint32 array of numpy or jax: every bit depends on every bit."""
    bits = (bits ^ (bits >> 16)) * np.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * np.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _noise(count: int, salt: int) -> np.ndarray:
    """Fixed uint32 `[count]` that look random; another salt gives others."""
    return _mix(np.arange(count, dtype=np.uint32) + np.uint32(salt << 16))


def _numbers(shape: tuple[int, ...], salt: int) -> np.ndarray:
    """Numbers for probes: half over the whole range of inputs, half near the immediates 0..15."""
    noise = _noise(math.prod(shape), salt).reshape(shape)
    number = (noise >> 1).astype(np.int32)
    return np.where(noise % 2, LOWEST + number % (HIGHEST - LOWEST + 1), number % 18 - 1).astype(np.int32)


@functools.cache
def probe_inputs(settings: Settings) -> Value:
    """The probe set of every signature: a host `Value` with fields `[4, 64, 2]` and words `[4, 64, 2, W]`.

    A lone number runs through the whole range of inputs and three values far outside, so there the behaviour is the
    function itself. Lists come in every length from 1 to W.
    """
    shape = (len(SIGNATURES), PROBES, 2)
    kind, length = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    words = np.zeros((*shape, settings.width), np.int32)
    probe = np.arange(PROBES)
    for signature, types in enumerate(SIGNATURES):
        for place, wanted in enumerate(types):
            salt = 16 * signature + place + 1
            kind[signature, :, place] = wanted
            if wanted is Type.LIST:
                lengths = 1 + probe % settings.width
                inside = np.arange(settings.width)[None] < lengths[:, None]
                length[signature, :, place] = lengths
                words[signature, :, place] = np.where(inside, _numbers((PROBES, settings.width), salt), 0)
            else:
                length[signature, :, place] = 1
                words[signature, :, place, 0] = _numbers((PROBES,), salt)
    lone = np.concatenate([np.arange(LOWEST, HIGHEST + 1), [100, -100, 1000]])
    words[SIGNATURES.index((Type.INT,)), :, 0, 0] = lone
    return Value(kind, length, words)  # type: ignore[arg-type]


def probe_outputs(program: Program, signature: jax.Array, settings: Settings) -> Value:
    """The outputs of one program on its signature's probe set, a `Value` with fields `[64]`; EMPTY where it faults."""
    inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf)[signature], probe_inputs(settings))  # [64, 2]
    return jax.vmap(lambda value: run(program, value, settings).output)(inputs)


def behaviour_hash(outputs: Value, signature: jax.Array) -> jax.Array:
    """Two independent 32-bit hashes of the outputs on the probe set and of the signature: uint32 `[2]`.

    Every field is mixed with its place and the results are added, which is exact in any order.
    """
    fields = jnp.concatenate([outputs.type[:, None], outputs.length[:, None], outputs.words], axis=1)  # [64, 2 + W]
    salts = np.stack([_noise(fields.size, salt) for salt in (101, 202)])  # [2, 64 * (2 + W)]
    bits = fields.reshape(1, -1).astype(jnp.uint32) * np.uint32(0x9E3779B1) + salts
    total = jnp.sum(_mix(bits), axis=1, dtype=jnp.uint32)
    return _mix(total + signature.astype(jnp.uint32) * np.uint32(0x27D4EB2F))


def split_of(behaviour: jax.Array) -> jax.Array:
    """The split (index into `SPLITS`) that a behaviour belongs to: int32 `[]` from the hash uint32 `[2]`."""
    return jnp.asarray(SPLIT_OF_CLASS)[(behaviour[0] % len(SPLIT_OF_CLASS)).astype(jnp.int32)]
