"""Is a task's reference the only program near it that passes? Every single edit is tried on the task's examples."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from vm.behaviour import behaviour_hash, probe_outputs
from vm.candidates import Candidate, run_all
from vm.chunks import Judged, in_chunks, rows
from vm.edits import apply_action
from vm.types import Examples, Settings, values_equal

CHUNK = 32  # tasks at a time
_FIRST_EXAMPLES = 4  # what every edit is run on; only edits that pass these see the others and the probe set
_PASSING_CHUNK = 512  # (task, edit) pairs at a time


@functools.partial(jax.jit, static_argnames="settings")
def _passing_edits(candidate: Candidate, examples: Examples, settings: Settings) -> jax.Array:
    """Which edits (STOP is none) leave a program that gives the targets of the examples: bool `[N, A]`."""

    def one(candidate: Candidate, examples: Examples) -> jax.Array:
        def passes(action: jax.Array) -> jax.Array:
            program, valid = apply_action(candidate.program, action, settings)
            outputs, _ = run_all(program, examples.inputs, settings)
            return valid & jnp.all(values_equal(outputs, examples.targets))

        return jax.vmap(passes)(jnp.arange(1, settings.num_actions, dtype=jnp.int32))

    return jax.vmap(one)(candidate, examples)


@functools.partial(jax.jit, static_argnames="settings")
def _misleads(candidate: Candidate, examples: Examples, action: jax.Array, settings: Settings) -> jax.Array:
    """Whether the edited program gives all targets and yet differs on the probe set: bool `[N]`."""

    def one(candidate: Candidate, examples: Examples, action: jax.Array) -> jax.Array:
        program, _ = apply_action(candidate.program, action, settings)
        outputs, _ = run_all(program, examples.inputs, settings)
        signature = candidate.signature
        behaviour = behaviour_hash(probe_outputs(program, signature, settings), signature)
        return jnp.all(values_equal(outputs, examples.targets)) & jnp.any(behaviour != candidate.behaviour)

    return jax.vmap(one)(candidate, examples, action)


def ambiguous(tasks: Judged, settings: Settings) -> np.ndarray:
    """For which tasks a program one edit from the reference passes all examples and differs on the probe set.

    Args:
      tasks: host arrays, `[N, ...]`.
      settings: the machine's sizes.

    Returns:
      bool `[N]`.
    """
    examples = Examples(tasks.inputs, tasks.targets)
    first = jax.tree.map(lambda leaf: leaf[:, :_FIRST_EXAMPLES], examples)
    passing = in_chunks(functools.partial(_passing_edits, settings=settings), CHUNK, tasks.candidate, first)
    found = np.zeros(len(tasks.indices), bool)
    task, edit = np.nonzero(passing)
    if not len(task):
        return found
    misleads = in_chunks(
        functools.partial(_misleads, settings=settings),
        _PASSING_CHUNK,
        *rows((tasks.candidate, examples), task),
        (edit + 1).astype(np.int32),
    )
    found[task[misleads]] = True
    return found
