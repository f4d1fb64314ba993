"""What a controller may see of the machine between two edits."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from vm.machine import run, trace
from vm.types import DEFAULT_SETTINGS, Examples, Program, Result, Settings, Value, values_equal


class Observation(NamedTuple):
    """The program and its behaviour on the public inputs; int32, leading batch axes allowed.

    Attributes:
      op: `[L]`, opcodes of the program.
      arg: `[L]`, its arguments.
      inputs: `Value[E, 2]`, the public inputs.
      outputs: `Value[E]`, what the program gives for them.
      status: `[E]`, how it ended.
      tops: `Value[L]`, the stack's top after each slot on the first example.
      pc: `[]`, the faulting slot on the first example, L when none.
      step: `[]`, edits attempted so far.
      budget: `[]`, edits left.
    """

    op: jax.Array
    arg: jax.Array
    inputs: Value
    outputs: Value
    status: jax.Array
    tops: Value
    pc: jax.Array
    step: jax.Array
    budget: jax.Array


def run_all(program: Program, inputs: Value, settings: Settings = DEFAULT_SETTINGS) -> Result:
    """Run a program on every input `Value[E, 2]`: a `Result[E]`. Unbatched."""
    return jax.vmap(lambda example: run(program, example, settings))(inputs)


def observe(
    program: Program,
    inputs: Value,
    results: Result,
    step: jax.Array,
    budget: jax.Array,
    settings: Settings = DEFAULT_SETTINGS,
) -> Observation:
    """Put together what there is to see. Unbatched.

    Args:
      program: `[L]`.
      inputs: the public inputs, `Value[E, 2]`.
      results: what the program gave for them, `Result[E]`, from `run_all`.
      step: int32 `[]`, edits attempted so far.
      budget: int32 `[]`, edits left.
      settings: static sizes.
    """
    chex.assert_equal_shape_prefix([inputs.type, results.status], 1)
    first = trace(program, jax.tree.map(lambda x: x[0], inputs), settings)
    return Observation(
        op=program.op,
        arg=program.arg,
        inputs=inputs,
        outputs=results.output,
        status=results.status,
        tops=first.tops,
        pc=first.result.pc,
        step=jnp.asarray(step, jnp.int32),
        budget=jnp.asarray(budget, jnp.int32),
    )


def join_examples(public: Examples, hidden: Examples) -> Examples:
    """Public and hidden examples behind each other along the example axis: `[N, E]` and `[N, H]` to `[N, E + H]`."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), public, hidden)


def matches(program: Program, examples: Examples, settings: Settings = DEFAULT_SETTINGS) -> jax.Array:
    """Which examples a program gets right: bool `[E]`. Unbatched; a faulting program matches nothing."""
    return values_equal(run_all(program, examples.inputs, settings).output, examples.targets)
