"""Tricks that make XLA's CPU code faster; they never change a value, and other backends do without them.

XLA's CPU compiler has no fusion with several outputs: each of a step's output words becomes a loop of its own that
recomputes nearly the whole step. Stages that stay calls are computed once. And a chunk of lanes whose whole program
is one small compiled function keeps its state in the first-level cache. Both are asked for by undocumented attributes
of XLA (`inlineable`, `xla_cpu_small_call`) on a call; where they don't exist the plain path is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

CHUNK = 128  # lanes; twice as many is more than XLA compiles as a small call
VECTOR = 16  # lanes of the widest vector; 120 lanes take longer than 128, as the rest of a vector is done one by one

Attributes = Callable[..., AbstractContextManager[Any]]

_attributes: Attributes | None
try:
    from jax.experimental.xla_metadata import set_xla_metadata

    _attributes = set_xla_metadata
except ImportError:  # this jax can't pass attributes to XLA
    _attributes = None


def _attributed_call(function: Callable[..., Any], *args: Any, **attributes: str) -> Any:
    """`function(*args)`, with these attributes on every operation that it leaves in the program."""
    if _attributes is None:
        return function(*args)
    with _attributes(**attributes):
        return function(*args)


def direct_call(function: Callable[..., Any], *args: Any) -> Any:
    """Apply a stage as it is."""
    return function(*args)


def kept_call(function: Callable[..., Any], *args: Any) -> Any:
    """Apply a stage as a call that the compiler doesn't inline."""
    return _attributed_call(jax.jit(function), *args, inlineable="false")


def available() -> bool:
    """Whether the tricks apply: the default backend is the CPU."""
    return _attributes is not None and jax.default_backend() == "cpu"


@functools.partial(jax.jit, static_argnums=0)
def _chunk(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def compiler_options() -> dict[str, int]:
    """Options for `jax.jit` that speed up a program which is mostly the machine: vectors of 512 bits on the CPU."""
    return {"xla_cpu_prefer_vector_width": 512} if jax.default_backend() == "cpu" else {}


def small_call(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` compiled as one small function, its loops included; at most `CHUNK` lanes.

    The function is a key of a cache: give the same object each time.
    """
    return _attributed_call(_chunk, function, *args, inlineable="false", xla_cpu_small_call="true")


def map_chunks(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` over a leading axis of lanes, at most `CHUNK` of them at a time.

    Args:
      function: takes and returns trees of arrays with the lane axis first; lanes don't see each other.
      *args: trees of arrays `[N, ...]`.
    """
    lanes = jax.tree.leaves(args)[0].shape[0]

    if lanes <= CHUNK:
        return small_call(function, *args)
    count = -(-lanes // CHUNK)

    def split(array: jax.Array) -> jax.Array:
        blank = jnp.zeros((count * CHUNK - lanes, *array.shape[1:]), array.dtype)
        return jnp.concatenate([array, blank]).reshape(count, CHUNK, *array.shape[1:])  # [C, 128, ...]

    chunks = lax.map(lambda chunk: small_call(function, *chunk), jax.tree.map(split, args))
    return jax.tree.map(lambda array: array.reshape(count * CHUNK, *array.shape[2:])[:lanes], chunks)
