"""What a controller may see of the machine between two edits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from vm.machine import run, trace
from vm.types import DEFAULT_SETTINGS, Examples, Program, Settings, Value, values_equal


class Observation(NamedTuple):
    """The program and its behaviour on the public inputs; int32 unless said otherwise, leading batch axes allowed.

    Attributes:
      op, arg: `[L]`, the program.
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


def observe(
    program: Program, inputs: Value, step: jax.Array, budget: jax.Array, settings: Settings = DEFAULT_SETTINGS
) -> Observation:
    """Run a program on the public inputs `Value[E, 2]` and collect what there is to see. Unbatched."""
    result = jax.vmap(lambda example: run(program, example, settings))(inputs)  # [E]
    first = trace(program, jax.tree.map(lambda x: x[0], inputs), settings)
    return Observation(
        op=program.op,
        arg=program.arg,
        inputs=inputs,
        outputs=result.output,
        status=result.status,
        tops=first.tops,
        pc=first.result.pc,
        step=jnp.asarray(step, jnp.int32),
        budget=jnp.asarray(budget, jnp.int32),
    )


def matches(program: Program, examples: Examples, settings: Settings = DEFAULT_SETTINGS) -> jax.Array:
    """Which examples a program gets right: bool `[E]`. Unbatched; a faulting program matches nothing."""
    outputs = jax.vmap(lambda example: run(program, example, settings).output)(examples.inputs)
    return values_equal(outputs, examples.targets)
