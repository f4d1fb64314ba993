"""Candidates by the chunk: compiled once a size for all splits, compacted on the host between the stages.

The stages run from cheap to dear (`candidates.screen`, then `candidates.judge`), and each sees only what passed the
one before. Rows stay in the order of their candidate indices and every stage works on full chunks, so what comes out
does not depend on where the chunks were cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from vm import candidates
from vm.candidates import ACCEPTED, Candidate, task_key
from vm.types import Program, Settings, Value

SCREENED, JUDGED = 4096, 256  # candidates in a chunk

Tree = TypeVar("Tree")


class Recipe(NamedTuple):
    """What a stream of tasks is made from: `split` indexes `SPLITS`; `examples` counts public and hidden together."""

    split: int
    seed: int
    examples: int
    settings: Settings


class Judged(NamedTuple):
    """Accepted candidates with their examples, as host arrays: `indices` uint32 `[N]`, inputs `[N, E, 2]`."""

    indices: np.ndarray
    candidate: Candidate
    inputs: Value
    targets: Value


class ReasonLog:
    """Why candidates were refused: what a manifest reports. Remembers one byte a candidate."""

    def __init__(self) -> None:
        """An empty log."""
        self._reasons = np.zeros(0, np.int8)

    def record(self, index: Any, reason: Any) -> None:
        """Notes the reasons (indices into `REFUSALS`) of the candidates at these indices; one or arrays of them."""
        missing = int(np.max(index)) + 1 - len(self._reasons)
        if missing > 0:
            self._reasons = np.concatenate([self._reasons, np.zeros(missing, np.int8)])
        self._reasons[index] = reason

    def counts(self, stop: int) -> dict[str, int]:
        """How many candidates before index `stop` met each reason, in the order of `REFUSALS`."""
        counts = np.bincount(self._reasons[:stop], minlength=len(candidates.REFUSALS))
        return {name: int(counts[code]) for code, name in enumerate(candidates.REFUSALS)}


@functools.partial(jax.jit, static_argnames="settings")
def _screen_chunk(
    seed: jax.Array, split: jax.Array, index: jax.Array, settings: Settings
) -> tuple[Candidate, jax.Array]:
    return jax.vmap(lambda i: candidates.screen(task_key(seed, split, i), split, settings))(index)


@functools.partial(jax.jit, static_argnames=("examples", "settings"))
def judge_chunk(
    seed: jax.Array,
    split: jax.Array,
    index: jax.Array,
    source: Program,
    candidate: Candidate,
    examples: int,
    settings: Settings,
) -> tuple[Value, Value, jax.Array]:
    """Inputs `[N, E, 2]`, targets `[N, E]` and reasons `[N]` of candidates.

    The inputs are those of task `index` whose reference is `source`: the candidate's own program, or in a pair the
    program of the first task.
    """

    def one(index: jax.Array, source: Program, candidate: Candidate) -> tuple[Value, Value, jax.Array]:
        key = task_key(seed, split, index)
        inputs = candidates.draw_inputs(key, source, candidate.signature, examples, settings)
        return inputs, *candidates.judge(candidate, inputs, settings)

    return jax.vmap(one)(index, source, candidate)


def rows(tree: Tree, which: Any) -> Tree:
    """Rows of a batched tree as host arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[which], tree)


def concatenate(trees: list[Tree]) -> Tree:
    """Batched trees of host arrays one after the other."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)


def in_chunks(function: Callable[..., Any], size: int, *batched: Any) -> Any:
    """Calls `function` on chunks of exactly `size` rows, so it compiles once; returns host arrays.

    There must be a row. The last chunk is filled up with its last row, and the results of the filling are cut off.
    """
    count = len(jax.tree.leaves(batched)[0])
    results = []
    for first in range(0, count, size):
        which = np.minimum(np.arange(first, first + size), count - 1)
        results.append(rows(function(*rows(batched, which)), slice(count - first)))
    return concatenate(results)


def screened(recipe: Recipe, first: int, log: ReasonLog | None = None) -> Iterator[tuple[np.ndarray, Candidate]]:
    """Without end, the candidates from index `first` on that pass the screen: indices uint32 `[n]` and rows."""
    seed, split = jnp.uint32(recipe.seed), jnp.int32(recipe.split)

    def begin(start: int) -> tuple[np.ndarray, Any]:
        index = np.arange(start, start + SCREENED, dtype=np.uint32)
        return index, _screen_chunk(seed, split, index, recipe.settings)

    ahead = begin(first)
    while True:
        index, (candidate, reason) = ahead
        first += SCREENED
        ahead = begin(first)  # runs on another core while these rows are judged
        if log is not None:
            log.record(index, np.asarray(reason))
        passed = np.flatnonzero(np.asarray(reason) == ACCEPTED)
        yield index[passed], rows(candidate, passed)


def judged(recipe: Recipe, first: int, log: ReasonLog | None = None) -> Iterator[Judged]:
    """Without end, the candidates from index `first` on that pass the screen and the judge, in order."""
    for index, candidate in regrouped(screened(recipe, first, log), JUDGED):
        inputs, targets, reason = judge_chunk(
            jnp.uint32(recipe.seed),
            jnp.int32(recipe.split),
            index,
            candidate.program,
            candidate,
            recipe.examples,
            recipe.settings,
        )
        if log is not None:
            log.record(index, np.asarray(reason))
        yield rows(Judged(index, candidate, inputs, targets), np.asarray(reason) == ACCEPTED)


class Buffer(Generic[Tree]):
    """The rows of an endless stream of batched trees, taken in any numbers; their order stays."""

    def __init__(self, groups: Iterator[Tree]) -> None:
        """`groups` must not end."""
        self._groups = groups
        self._held = next(groups)

    def take(self, count: int) -> Tree:
        """The next `count` rows, as host arrays."""
        parts, held = [self._held], len(jax.tree.leaves(self._held)[0])
        while held < count:
            parts.append(next(self._groups))
            held += len(jax.tree.leaves(parts[-1])[0])
        joined = concatenate(parts)
        self._held = rows(joined, slice(count, None))
        return rows(joined, slice(count))


def regrouped(groups: Iterator[Tree], size: int) -> Iterator[Tree]:
    """The same rows in the same order, in groups of exactly `size`; `groups` must not end."""
    buffer = Buffer(groups)
    while True:
        yield buffer.take(size)
