"""The oracle that knows the targets but not the reference: beam search over edits, any right program counts."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from vm.edits import apply_action
from vm.machine import run
from vm.observation import matches
from vm.types import DEFAULT_SETTINGS, Examples, Program, Settings, Value, values_equal

EXACT = 1 << 10  # an example that is right outweighs any likeness of the others


class Expansion(NamedTuple):
    """All edits of one program: `programs` `[N - 1, L]`, `valid` bool `[N - 1]`, `outputs` `Value[N - 1, E]`."""

    programs: Program
    valid: jax.Array
    outputs: Value


def expand(program: Program, inputs: Value, settings: Settings = DEFAULT_SETTINGS) -> Expansion:
    """Every edit of a program, run on every input `Value[E, 2]`; edit i is the flat action i + 1. Unbatched."""
    actions = jnp.arange(1, settings.num_actions, dtype=jnp.int32)
    programs, valid = jax.vmap(lambda action: apply_action(program, action, settings))(actions)
    over_inputs = jax.vmap(lambda program, example: run(program, example, settings).output, (None, 0))
    return Expansion(programs, valid, jax.vmap(over_inputs, (0, None))(programs, inputs))


class Search(NamedTuple):
    """What a beam search found.

    Attributes:
      edits: int32 `[]`, length of the repair; one more than was allowed when there is none.
      actions: int32 `[K]`, the repair, 0 past its end.
      executions: int32 `[]`, candidate programs run until it was found, or in all.
    """

    edits: jax.Array
    actions: jax.Array
    executions: jax.Array


class _Beam(NamedTuple):
    programs: Program  # [W, L]
    alive: jax.Array  # bool [W]
    actions: jax.Array  # [W, K]
    found: Search


def likeness(output: Value, target: Value) -> jax.Array:
    """How like its target an output is: int32 `[...]`, `EXACT` when equal, else a few points a matching part."""
    same_type = output.type == target.type
    same_length = same_type & (output.length == target.length)
    place = jnp.arange(output.words.shape[-1], dtype=jnp.int32).reshape((1,) * output.length.ndim + (-1,))
    inside = place < jnp.minimum(output.length, target.length)[..., None]
    words = jnp.sum(inside & same_type[..., None] & (output.words == target.words), axis=-1)
    points = 4 * same_type.astype(jnp.int32) + 4 * same_length.astype(jnp.int32) + words
    return jnp.where(values_equal(output, target), EXACT, points)


def hash_numbers(numbers: jax.Array) -> jax.Array:
    """A 32-bit FNV-1a hash over the last axis: int32 `[..., M]` to uint32 `[...]`."""
    result = jnp.full(numbers.shape[:-1], 2166136261, jnp.uint32)
    for i in range(numbers.shape[-1]):
        result = (result ^ numbers[..., i].astype(jnp.uint32)) * jnp.uint32(16777619)
    return result


def _first_of_each(keys: jax.Array, score: jax.Array) -> jax.Array:
    """Marks the best-scoring entry of each key, the earliest among equals: bool `[C]` from uint32 and int32 `[C]`."""
    order = jnp.lexsort((-score, keys))
    ordered = keys[order]
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    return jnp.zeros(keys.shape, bool).at[order].set(first)


def oracle_search(
    start: Program,
    public: Examples,
    hidden: Examples,
    steps: int,
    width: int,
    settings: Settings = DEFAULT_SETTINGS,
) -> Search:
    """Look for the fewest edits after which all examples are right. Unbatched; beyond one edit a lower bound.

    In each round every edit of every program in the beam is run on the public examples; programs with the same
    outputs are one, the likest `width` are kept and judged on all examples.

    Args:
      start: `Program[L]`.
      public: the examples that candidates are ranked on, `[E]`.
      hidden: the examples that those kept are judged on as well, `[H]`.
      steps: static number K of edits to allow, at least 1.
      width: static beam width W.
      settings: static sizes.
    """
    chex.assert_rank(start.op, 1)

    def solved(program: Program) -> jax.Array:
        return jnp.all(matches(program, public, settings)) & jnp.all(matches(program, hidden, settings))

    def deepen(beam: _Beam, depth: jax.Array) -> tuple[_Beam, None]:
        spread = jax.vmap(lambda program: expand(program, public.inputs, settings))(beam.programs)
        usable = (spread.valid & beam.alive[:, None]).reshape(-1)  # [W * (N - 1)]
        programs, outputs = jax.tree.map(
            lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (spread.programs, spread.outputs)
        )
        targets = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (len(usable), *leaf.shape)), public.targets)
        score = jnp.where(usable, jnp.sum(likeness(outputs, targets), axis=-1), -1)
        flat = (outputs.type, outputs.length, outputs.words.reshape(len(usable), -1))
        by_output = hash_numbers(jnp.concatenate([leaf.reshape(len(usable), -1) for leaf in flat], axis=-1))
        best, chosen = jax.lax.top_k(jnp.where(_first_of_each(by_output, score), score, -1), width)
        parent, edit = chosen // (settings.num_actions - 1), chosen % (settings.num_actions - 1) + 1
        kept = jax.tree.map(lambda leaf: leaf[chosen], programs)
        actions = beam.actions[parent].at[:, depth].set(edit.astype(jnp.int32))
        right = jax.vmap(solved)(kept) & (best >= 0)
        executions = beam.found.executions + jnp.sum(usable, dtype=jnp.int32)
        open_ = beam.found.edits > steps
        now = Search(
            edits=jnp.where(jnp.any(right), depth + 1, steps + 1),
            actions=jnp.where(jnp.any(right), actions[jnp.argmax(right)], 0),
            executions=executions,
        )
        found = jax.tree.map(lambda new, old: jnp.where(open_, new, old), now, beam.found)
        return _Beam(kept, best >= 0, actions, found), None

    none = jnp.zeros(steps, jnp.int32)
    already = solved(start)
    beam = _Beam(
        programs=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (width, *leaf.shape)), start),
        alive=jnp.arange(width) == 0,
        actions=jnp.zeros((width, steps), jnp.int32),
        found=Search(jnp.where(already, 0, steps + 1).astype(jnp.int32), none, jnp.int32(0)),
    )
    return jax.lax.scan(deepen, beam, jnp.arange(steps, dtype=jnp.int32))[0].found
