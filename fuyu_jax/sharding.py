"""Splitting the batch of a sweep or of rollouts over all devices present."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

BATCH, COPY = "batch", "copy"

Function = TypeVar("Function", bound=Callable[..., Any])


def device_mesh(batch: int) -> Mesh:
    """All devices, in as many parts as divide a batch evenly; the devices of one part do the same work.

    No row is added to fill up a part, so no device ever sees a row that nobody asked for.
    """
    devices = np.array(jax.devices())
    return Mesh(devices.reshape(math.gcd(batch, len(devices)), -1), (BATCH, COPY))


def split_batch(function: Function, shared: Sequence[int] = (), axis: int = 0) -> Function:
    """A function that does the same with its batch split over all devices; with one device it is the function itself.

    Each device runs the whole function on its own rows (`jax.shard_map`) instead of leaving the split to the compiler,
    which would gather the lanes again in each loop over chunks of them. Rows must not depend on each other.

    Args:
      function: takes trees of arrays with the batch axis first, `[B, ...]`, at least one of them with a leaf.
      shared: places of those arguments that have no batch axis: every device gets all of them.
      axis: where the batch axis is in the results.
    """

    @functools.wraps(function)
    def split(*args: Any) -> Any:
        batched = [arg for place, arg in enumerate(args) if place not in shared]
        mesh = device_mesh(jax.tree.leaves(batched)[0].shape[0])
        if mesh.shape[BATCH] == 1:
            return function(*args)
        rows = PartitionSpec(BATCH)
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=tuple(PartitionSpec() if place in shared else rows for place in range(len(args))),
            out_specs=PartitionSpec(*[None] * axis, BATCH),
            check_vma=False,  # loops start from constants, which count as the same on all devices
        )(*args)

    return cast(Function, split)


def gather(tree: Any) -> Any:
    """Arrays of a split batch on the first device again; with one device the tree itself."""
    return tree if jax.device_count() == 1 else jax.tree.map(jnp.asarray, jax.device_get(tree))
