"""Training tasks without end, and the manifest of a set of tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vm.chunks import Buffer, Recipe, judged, regrouped
from vm.grammar import FAMILIES
from vm.tasks import STARTED, TaskArrays, Tasks, recipe_of, with_starts
from vm.types import DEFAULT_SETTINGS, Settings


class TaskStream:
    """Training tasks without end, in the order of their candidate indices.

    Attributes:
      cursor: index of the candidate after the last task that was handed out: all there is to save. A new stream that
        begins there goes on with the same tasks.
    """

    def __init__(
        self,
        seed: int,
        start: str = "mixed",
        public: int = 4,
        hidden: int = 16,
        settings: Settings = DEFAULT_SETTINGS,
        cursor: int = 0,
    ) -> None:
        """A stream of tasks of split `train`; see `make_tasks` for the arguments.

        Raises:
          ValueError: for an argument out of its range.
        """
        self._recipe, self._start, self._public = (
            recipe_of("train", seed, start, public, hidden, settings),
            start,
            public,
        )
        self.move_to({"cursor": cursor})

    @property
    def position(self) -> dict[str, int]:
        """Which tasks come next, for `move_to`."""
        return {"cursor": self.cursor}

    def move_to(self, position: Mapping[str, int]) -> None:
        """Goes on where another stream with the same tasks stood.

        Raises:
          ValueError: where its cursor is negative.
        """
        cursor = position["cursor"]
        if cursor < 0:
            raise ValueError(f"cursor is {cursor}; use 0 to begin, or the cursor of an earlier stream.")
        self.cursor = cursor
        self._tasks = Buffer(_started(self._recipe, cursor, self._start, self._public))

    def next_batch(self, count: int) -> tuple[TaskArrays, int]:
        """The next `count` tasks (`[count, ...]`, on the device), and the cursor after them.

        Raises:
          ValueError: where `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"count is {count}; ask for at least 1 task.")
        index, tasks = self._tasks.take(count)
        self.cursor = int(index[-1]) + 1
        return jax.tree.map(jnp.asarray, tasks), self.cursor


def _started(recipe: Recipe, cursor: int, start: str, public: int) -> Iterator[tuple[np.ndarray, TaskArrays]]:
    for group in regrouped(judged(recipe, cursor), STARTED):
        yield group.indices, with_starts(recipe, group, start, public)


def tasks_digest(tasks: Tasks) -> str:
    """SHA-256 of programs, inputs, targets, starts and prompts, in hexadecimal.

    Arrays are hashed as little-endian int32 with their names and shapes, so the digest is the same on every machine.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tasks.arrays):
        numbers = np.ascontiguousarray(np.asarray(leaf), "<i4")
        digest.update(f"{jax.tree_util.keystr(path)} {numbers.shape}\n".encode())
        digest.update(numbers.tobytes())
    digest.update("\n".join(tasks.prompts).encode())
    return digest.hexdigest()


def split_manifest(tasks: Tasks) -> dict[str, Any]:
    """What a report says of a set of tasks, ready for JSON.

    Returns:
      Name and seed, the numbers of tasks by family, length and start, how many tasks repeat an earlier behaviour,
      candidates looked at and refused by reason, and the `sha256` of everything in the tasks.
    """
    arrays = tasks.arrays
    families = np.bincount(np.asarray(arrays.family), minlength=len(FAMILIES))
    lengths = np.bincount(np.asarray(arrays.length))
    start, reference = np.asarray(arrays.start), np.asarray(arrays.reference)  # [2, N, L]
    blank = int(np.all(start == 0, axis=(0, 2)).sum())
    solved = int(np.all(start == reference, axis=(0, 2)).sum())
    return {
        "split": tasks.split,
        "seed": tasks.seed,
        "tasks": len(tasks),
        "families": {name: int(families[code]) for code, name in enumerate(FAMILIES)},
        "lengths": {str(length): int(lengths[length]) for length in range(1, len(lengths))},
        "starts": {"blank": blank, "corrupted": len(tasks) - blank - solved, "solved": solved},
        "repeated_behaviours": len(tasks) - len(np.unique(tasks.behaviours)),
        "candidates": sum(tasks.refusals.values()),
        "refusals": {name: count for name, count in tasks.refusals.items() if name != "accepted"},
        "sha256": tasks_digest(tasks),
    }
