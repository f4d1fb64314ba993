"""The oracle that knows the targets, not the reference: exact within two edits, then a beam."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from vm.expansion import expand
from vm.reach import EXACT_EDITS, Search, first_right, reach
from vm.types import DEFAULT_SETTINGS, Examples, Program, Settings, Value, values_equal

RIGHT = 1 << 10  # points of an example that is right, more than any likeness of the others

Array = jax.Array


class _Beam(NamedTuple):
    depth: Array  # []
    programs: Program  # [W, L]
    alive: Array  # bool [W]
    actions: Array  # [W, K]
    visited: Array  # uint32 [K + 1, W], hashes of the programs kept so far
    found: Search


def likeness(output: Value, target: Value) -> Array:
    """How like its target an output is: int32 `[...]`, `RIGHT` when equal, else a few points a matching part."""
    same_type = output.type == target.type
    same_length = same_type & (output.length == target.length)
    place = jnp.arange(output.words.shape[-1], dtype=jnp.int32).reshape((1,) * output.length.ndim + (-1,))
    inside = place < jnp.minimum(output.length, target.length)[..., None]
    words = jnp.sum(inside & same_type[..., None] & (output.words == target.words), axis=-1)
    points = 4 * same_type.astype(jnp.int32) + 4 * same_length.astype(jnp.int32) + words
    return jnp.where(values_equal(output, target), RIGHT, points)


def hash_numbers(numbers: Array) -> Array:
    """A 32-bit FNV-1a hash over the last axis: int32 `[..., M]` to uint32 `[...]`."""
    result = jnp.full(numbers.shape[:-1], 2166136261, jnp.uint32)
    for i in range(numbers.shape[-1]):
        result = (result ^ numbers[..., i].astype(jnp.uint32)) * jnp.uint32(16777619)
    return result


def oracle_search(
    start: Program,
    public: Examples,
    hidden: Examples,
    steps: int,
    width: int,
    settings: Settings = DEFAULT_SETTINGS,
) -> Search:
    """Look for the fewest edits after which all examples are right. Unbatched; `search_tasks` does many.

    Up to two edits nothing is left out (`reach`). Beyond, a beam: in each round every edit of its programs is run on
    the public examples, and of those outputs that differ the likest `width` go on, unless their program did before.
    A candidate that is right on the public examples is run on the hidden ones. So the answer is exact within two
    edits, and beyond them a repair that works but need not be the shortest, nor be found.

    Args:
      start: `Program[L]`.
      public: the examples that candidates are ranked on, `[E]`.
      hidden: the examples that the right ones are judged on as well, `[H]`.
      steps: static number K of edits to allow, at least 1.
      width: static beam width W; 0 for no search beyond two edits.
      settings: static sizes.

    Raises:
      ValueError: for fewer than one edit, a negative width, or no public examples.
    """
    chex.assert_rank(start.op, 1)
    if steps < 1:
        raise ValueError(f"a search for {steps} edits finds nothing; allow at least 1.")
    if width < 0:
        raise ValueError(f"a beam can't be {width} programs wide; use 0 (no beam) or more.")
    near = reach(start, public, hidden, min(steps, EXACT_EDITS), settings)
    unused = steps - near.actions.shape[0]
    exact = near.edits <= near.actions.shape[0]
    found = Search(
        edits=jnp.where(exact, near.edits, steps + 1),
        actions=jnp.pad(near.actions, (0, unused)),
        executions=jnp.pad(near.executions, (0, unused), mode="edge"),
    )
    if not (unused and width):
        return found
    spread = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (width, *leaf.shape)), start)
    beam = _Beam(
        depth=jnp.int32(0),
        programs=spread,
        alive=jnp.arange(width) == 0,
        actions=jnp.zeros((width, steps), jnp.int32),
        visited=jnp.broadcast_to(_hash_program(start), (steps + 1, width)),
        found=found,
    )
    deepen = lambda beam: _deepen(beam, public, hidden, settings)  # noqa: E731
    return jax.lax.while_loop(lambda beam: (beam.depth < steps) & (beam.found.edits > steps), deepen, beam).found


def _hash_program(program: Program) -> Array:
    return hash_numbers(jnp.concatenate([program.op, program.arg], axis=-1))


def _deepen(beam: _Beam, public: Examples, hidden: Examples, settings: Settings) -> _Beam:
    """One round: every edit of every program, of which the likest that are new go on."""
    width, steps = beam.actions.shape
    spread = jax.vmap(lambda program: expand(program, public.inputs, settings))(beam.programs)
    usable = (spread.valid & beam.alive[:, None]).reshape(-1)  # [W * (N - 1)]
    programs, outputs = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (spread.programs, spread.outputs))
    known = jnp.any(_hash_program(programs)[:, None] == beam.visited.reshape(1, -1), axis=1)
    targets = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(usable), *leaf.shape)), public.targets)
    points = likeness(outputs, targets)  # [W * (N - 1), E]
    needs = jnp.maximum(beam.depth + 1, EXACT_EDITS + 1)  # fewer edits would have asked for no beam
    allowed = jnp.arange(steps + 1, dtype=jnp.int32)
    executions = beam.found.executions + jnp.where(allowed >= needs, jnp.sum(usable, dtype=jnp.int32), 0)

    right = usable & jnp.all(points == RIGHT, axis=1)
    place = first_right(right, lambda place: jax.tree.map(lambda leaf: leaf[place], programs), hidden, settings)
    cells = (outputs.type[..., None], outputs.length[..., None], outputs.words)
    by_output = hash_numbers(jnp.concatenate(cells, axis=-1).reshape(len(usable), -1))
    score = jnp.where(usable & ~known, jnp.sum(points, axis=1), -1)
    chosen, best = _likest(score, by_output, width)

    def extended(place: Array) -> Array:
        parent, edit = place // (settings.num_actions - 1), place % (settings.num_actions - 1) + 1
        return beam.actions[parent].at[beam.depth].set(edit)

    hit = place < len(usable)
    found = Search(
        edits=jnp.where(hit, beam.depth + 1, steps + 1),
        actions=jnp.where(hit, extended(jnp.minimum(place, len(usable) - 1)), 0),
        executions=executions,
    )
    kept = jax.tree.map(lambda leaf: leaf[chosen], programs)
    visited = beam.visited.at[beam.depth + 1].set(_hash_program(kept))
    return _Beam(beam.depth + 1, kept, best >= 0, jax.vmap(extended)(chosen), visited, found)


def _likest(score: Array, keys: Array, count: int) -> tuple[Array, Array]:
    """Places and scores of the best entries with different keys, the earliest among equals: int32 `[count]` each."""

    def choose(left: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        place = jnp.argmax(left).astype(jnp.int32)
        return jnp.where(keys == keys[place], -1, left), (place, left[place])

    return jax.lax.scan(choose, score, None, length=count)[1]


def search_tasks(
    start: Program,
    public: Examples,
    hidden: Examples,
    steps: int,
    width: int,
    settings: Settings = DEFAULT_SETTINGS,
    chunk: int = 1,
) -> Search:
    """`oracle_search` of B tasks, fields `[B, ...]`. The answers don't depend on `chunk`, the tasks searched at a time.

    One is fastest on a CPU, since a task that is done then waits for no other.
    """

    def one(task: tuple[Program, Examples, Examples]) -> Search:
        start, public, hidden = task
        return oracle_search(start, public, hidden, steps, width, settings)

    return jax.lax.map(one, (start, public, hidden), batch_size=None if chunk == 1 else chunk)


def reachable(
    program: Program,
    examples: Examples,
    k: int,
    width: int = 8,
    settings: Settings = DEFAULT_SETTINGS,
    ranked: int = 4,
) -> Array:
    """Whether k edits can make a program right on all examples, bool `[]`. Unbatched; `vmap` it or map over tasks.

    Exact for k up to `EXACT_EDITS`; beyond, a lower bound: True is sure, False says that the beam found nothing.

    Args:
      program: `Program[L]`.
      examples: `[E]`, at least one.
      k: static number of edits, at least 0.
      width: static beam width.
      settings: static sizes.
      ranked: static number of the first examples that candidates are ranked on, at least 1.

    Raises:
      ValueError: for a number that is out of these ranges, or no examples.
    """
    if k < 0:
        raise ValueError(f"{k} edits can't be asked about; use 0 or more.")
    return repair(program, examples, max(k, 1), width, settings, ranked).edits <= k


def repair(
    program: Program,
    examples: Examples,
    k: int,
    width: int = 8,
    settings: Settings = DEFAULT_SETTINGS,
    ranked: int = 4,
) -> Search:
    """The edits that make a program right on all examples, as few as the search found. See `reachable`, but k > 0.

    Knows the targets only; `vm.oracle.repair` goes along the reference.
    """
    public, hidden = (
        jax.tree.map(lambda x, part=part: x[part], examples) for part in (slice(ranked), slice(ranked, None))
    )
    return oracle_search(program, public, hidden, k, width, settings)
