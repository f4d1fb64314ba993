"""Labelled states: machine states with what the oracle and the verifier say of them, ready for the losses."""

from __future__ import annotations

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

import vm
from fuyu_jax.controller.state_tokens import MAX_BUDGET
from vm import oracle
from vm.layout import insert_gaps
from vm.observation import Observation, join_examples, observe, run_all
from vm.tasks import TaskArrays

BLOCK = 256  # states that are labelled together
LAYOUT = 1  # what a demonstration's key is folded with for its layout


class Repairs(NamedTuple):
    """Where labels lead: a right program for each of S states behind B prompts.

    Attributes:
      program: `Program[B, S, L]`, laid out from slot 0.
      length: int32 `[B, S]`, its instructions.
      known: bool `[B, S]`; where false the rest says nothing.
    """

    program: vm.Program
    length: jax.Array
    known: jax.Array


def to_references(tasks: TaskArrays, states: int) -> Repairs:
    """Every state's label leads to its task's reference: what only the oracle knows."""
    spread = lambda leaf: jnp.broadcast_to(leaf[:, None], (leaf.shape[0], states, *leaf.shape[1:]))  # noqa: E731
    program, length = jax.tree.map(spread, (tasks.reference, tasks.length))
    return Repairs(program, length, jnp.ones(length.shape, bool))


class States(NamedTuple):
    """S states behind each of B prompts; leading axes `[B, S]`.

    Attributes:
      seen: the observations.
      valid: bool `[B, S, N - 1]`, edits that change the program.
      teacher: bool `[B, S, N - 1]`, the oracle's teacher set.
      distance: int32 `[B, S]`, edits to the reference.
      solved: bool `[B, S]`, all public and hidden examples are right.
      taught: bool `[B, S]`, somebody knows a repair; without one, `teacher` is empty and `distance` says nothing.
      action: int32 `[B, S]`, the flat edit taken from here; 0 where none was.
      next_outputs: `Value[B, S, E]`, and
      next_status: int32 `[B, S, E]`: the public examples after that edit.
      weight: float32 `[B, S]`, how much a state counts; 0 for filler.
    """

    seen: Observation
    valid: jax.Array
    teacher: jax.Array
    distance: jax.Array
    solved: jax.Array
    taught: jax.Array
    action: jax.Array
    next_outputs: vm.Value
    next_status: jax.Array
    weight: jax.Array


def label_states(
    tasks: TaskArrays,
    program: vm.Program,
    action: jax.Array,
    step: jax.Array,
    budget: jax.Array,
    weight: jax.Array,
    settings: vm.Settings,
    placement: oracle.Placement = "first",
    repairs: Repairs | None = None,
) -> States:
    """Observe programs, say how they are repaired and whether they are right, and run the edit that was taken.

    States are labelled in blocks of one size, so that all that learn from states or measure on them share one
    compilation.

    Args:
      tasks: B tasks.
      program: `Program[B, S, L]`.
      action: int32 `[B, S]`, flat; 0 or -1 where no edit was taken.
      step: int32 `[B, S]`, edits attempted.
      budget: int32 `[B, S]`, edits left.
      weight: float32 `[B, S]`.
      settings: static sizes.
      placement: where among the slots a repair's instructions may go; see `vm.oracle.distance`.
      repairs: where the labels lead; the references when None.
    """
    chex.assert_equal_shape([action, step, budget, weight])
    repairs = to_references(tasks, action.shape[1]) if repairs is None else repairs

    count, samples = action.shape
    row = jnp.repeat(jnp.arange(count, dtype=jnp.int32), samples)
    flat = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (program, action, step, budget, weight, repairs)
    )
    size = BLOCK if row.shape[0] % BLOCK == 0 else row.shape[0]
    blocks = []
    for first in range(0, row.shape[0], size):
        part = jax.tree.map(lambda leaf, first=first: leaf[first : first + size], (row, *flat))
        blocks.append(_label_block(tasks, *part, settings=settings, placement=placement))
    whole = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *blocks) if len(blocks) > 1 else blocks[0]
    return jax.tree.map(lambda leaf: leaf.reshape(count, samples, *leaf.shape[1:]), whole)


@functools.partial(jax.jit, static_argnames=("settings", "placement"))
def _label_block(
    tasks: TaskArrays,
    row: jax.Array,
    program: vm.Program,
    action: jax.Array,
    step: jax.Array,
    budget: jax.Array,
    weight: jax.Array,
    repairs: Repairs,
    settings: vm.Settings,
    placement: oracle.Placement,
) -> States:
    """Label M states of the tasks at `row` `[M]`; see `label_states`, with `[M]` in place of `[B, S]`."""

    def one(
        program: vm.Program,
        action: jax.Array,
        step: jax.Array,
        budget: jax.Array,
        public: vm.Examples,
        examples: vm.Examples,
        repair: Repairs,
    ) -> tuple:
        results = run_all(program, examples.inputs, settings)
        shown = public.targets.type.shape[0]
        seen = observe(program, public.inputs, jax.tree.map(lambda leaf: leaf[:shown], results), step, budget, settings)
        solved = jnp.all(vm.values_equal(results.output, examples.targets))
        teaching = oracle.distance(program, repair.program, settings, placement, repair.length)
        after = run_all(vm.apply_action(program, action, settings)[0], public.inputs, settings)
        valid = vm.valid_actions(program, settings)[1:]
        teacher = teaching.teacher[1:] & repair.known
        return seen, valid, teacher, teaching.distance, solved, after.output, after.status

    public, hidden = jax.tree.map(lambda leaf: leaf[row], (tasks.public, tasks.hidden))
    seen, valid, teacher, distance, solved, outputs, status = jax.vmap(one)(
        program, action, step, budget, public, join_examples(public, hidden), repairs
    )
    return States(
        seen=seen,
        valid=valid,
        teacher=teacher,
        distance=distance,
        solved=solved,
        taught=repairs.known,
        action=jnp.maximum(action, 0),
        next_outputs=outputs,
        next_status=status,
        weight=weight,
    )


def spread_steps(key: jax.Array, count: jax.Array, samples: int) -> jax.Array:
    """Sample step indices evenly over 0..count-1, one from each of `samples` equal parts: int32 `[samples]`.

    A part narrower than a step repeats its neighbour's, so each index appears `samples / count` times on average.
    """
    offsets = jnp.arange(samples, dtype=jnp.float32) + jax.random.uniform(key, (samples,))
    steps = jnp.floor(offsets / samples * count.astype(jnp.float32)).astype(jnp.int32)
    return jnp.clip(steps, 0, jnp.maximum(count - 1, 0))


class Teaching(NamedTuple):
    """How the oracle teaches; static.

    Attributes:
      placement: where among the slots the reference's instructions may go: "first" from slot 0, "nearest" anywhere in
        order, "leftmost" at the leftmost of the nearest places.
      gaps: share of demonstrations and rollouts whose program and reference get blank slots between instructions, so
        that every slot is edited in training; not with "first".
    """

    placement: oracle.Placement = "first"
    gaps: float = 0.0


@functools.partial(jax.jit, static_argnames=("share", "settings"))
def lay_out(tasks: TaskArrays, keys: jax.Array, share: float, settings: vm.Settings) -> tuple[vm.Program, vm.Program]:
    """Start and reference of B tasks, `Program[B, L]` each; a share of them with the same gaps in both.

    Args:
      tasks: B tasks.
      keys: typed keys `[B]`.
      share: static, 0 to 1.
      settings: static sizes.
    """

    def one(start: vm.Program, reference: vm.Program, key: jax.Array) -> tuple[vm.Program, vm.Program]:
        coin, layout = jax.random.split(key)
        laid = insert_gaps((start, reference), layout, settings)
        gapped = jax.random.uniform(coin) < share
        start, reference = jax.tree.map(lambda new, old: jnp.where(gapped, new, old), laid, (start, reference))
        return start, reference

    return jax.vmap(one)(tasks.start, tasks.reference, keys) if share else (tasks.start, tasks.reference)


def oracle_states(
    tasks: TaskArrays,
    path_keys: jax.Array,
    key: jax.Array,
    samples: int,
    settings: vm.Settings,
    teaching: Teaching = Teaching(),  # noqa: B008 (immutable)
) -> States:
    """States on the oracle's repairs of B tasks, the repaired end among them.

    Args:
      tasks: B tasks.
      path_keys: typed keys `[B]`; each decides layout and order of its task's repair, so it fixes the demonstration.
      key: decides which states of the path are taken and the budgets they are shown with.
      samples: static number S of states of each path.
      settings: static sizes.
      teaching: static, how the oracle teaches.
    """
    layout_keys = jax.vmap(lambda key: jax.random.fold_in(key, LAYOUT))(path_keys)
    start, reference = lay_out(tasks, layout_keys, teaching.gaps, settings)
    program, action, step, budget = _sample_paths(start, reference, path_keys, key, samples, settings)
    return label_states(tasks, program, action, step, budget, jnp.ones(step.shape), settings, teaching.placement)


@functools.partial(jax.jit, static_argnames=("samples", "settings"))
def _sample_paths(
    start: vm.Program,
    reference: vm.Program,
    path_keys: jax.Array,
    key: jax.Array,
    samples: int,
    settings: vm.Settings,
) -> tuple[vm.Program, jax.Array, jax.Array, jax.Array]:
    """Programs on the oracle's repairs with the edit made there, and steps and budgets to show: all `[B, S]`."""
    count = path_keys.shape[0]
    steps_key, budget_key = jax.random.split(key)

    def path(start: vm.Program, reference: vm.Program, key: jax.Array) -> oracle.OraclePath:
        return oracle.repair(start, reference, key, MAX_BUDGET, settings)

    paths = jax.vmap(path)(start, reference, path_keys)
    states_on_path = jnp.minimum(paths.distance, MAX_BUDGET) + 1  # [B], the end included
    step = jax.vmap(lambda k, n: spread_steps(k, n, samples))(jax.random.split(steps_key, count), states_on_path)
    row = jnp.arange(count, dtype=jnp.int32)[:, None]
    program = jax.tree.map(lambda leaf: leaf[row, step], paths.programs)  # [B, S, L]
    actions = jnp.concatenate([paths.actions, jnp.zeros((count, 1), jnp.int32)], axis=1)
    budget = jax.random.randint(budget_key, step.shape, 1, jnp.maximum(MAX_BUDGET - step, 1) + 1)
    return program, actions[row, step], step, budget
