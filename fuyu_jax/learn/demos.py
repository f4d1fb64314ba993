"""Where training tasks come from: the stream of fresh ones, or a fixed set of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from vm.streams import TaskStream
from vm.tasks import TaskArrays
from vm.types import THREEFRY


class TaskSource(Protocol):
    """Where tasks come from, one after another: a stream, or demonstrations of one."""

    @property
    def position(self) -> dict[str, int]:
        """Which tasks come next."""

    def move_to(self, position: Mapping[str, int]) -> None:
        """Goes on at a position."""


class Demonstrations(NamedTuple):
    """B tasks with the key that fixes each one's oracle trajectory: `path_keys` are typed keys `[B]`."""

    tasks: TaskArrays
    path_keys: jax.Array


class DemonstrationSource:
    """Batches of demonstrations, the same for the same seed whatever happens between two batches.

    With `count` 0 every batch is fresh from the stream. Otherwise the first `count` tasks of the stream, each with one
    fixed trajectory, are gone through again and again, in a new order each time.
    """

    def __init__(self, stream: TaskStream, seed: int, count: int = 0) -> None:
        """Demonstrations of a stream's tasks; `seed` decides their trajectories and the order of passes."""
        self._stream = stream
        self._path_key, self._order_key = jax.random.split(jax.random.key(seed, impl=THREEFRY))
        self._count = count
        self._taken = 0
        self._fixed = stream.next_batch(count)[0] if count else None

    @property
    def position(self) -> dict[str, int]:
        """Which demonstrations come next, for `move_to`."""
        return {"taken": self._taken, "cursor": self._stream.cursor}

    def move_to(self, position: Mapping[str, int]) -> None:
        """Goes on where another source with the same tasks stood."""
        self._taken = position["taken"]
        if self._fixed is None:
            self._stream.move_to(position)

    def next_batch(self, size: int) -> Demonstrations:
        """The next `size` demonstrations."""
        first = self._taken
        self._taken += size
        if self._fixed is None:
            return Demonstrations(self._stream.next_batch(size)[0], self._paths(first + jnp.arange(size)))
        rows = self._rows(first, size)
        return Demonstrations(jax.tree.map(lambda leaf: leaf[rows], self._fixed), self._paths(rows))

    def _rows(self, first: int, size: int) -> jax.Array:
        """Rows at `size` positions of the endless sequence of shuffled passes: int32 `[size]`."""
        passes = range(first // self._count, (first + size - 1) // self._count + 1)
        orders = [jax.random.permutation(jax.random.fold_in(self._order_key, n), self._count) for n in passes]
        skipped = first - passes.start * self._count
        return jnp.concatenate(orders)[skipped : skipped + size]

    def _paths(self, tasks: jax.Array) -> jax.Array:
        return jax.vmap(lambda task: jax.random.fold_in(self._path_key, task))(tasks)
