"""The repair of a program as an environment: `init`, `step` and `observe`, pure functions for jit, vmap and scan.

An episode begins with a task's start program and a budget of edits. STOP ends it (`terminated`), whether the program
solves the task or not; the edit that spends the budget ends it too (`truncated`). STOP costs no budget. An invalid
action changes nothing, is counted, and spends a step of the budget.

`init` and `step` return the same tree, so a `State` can be the carry of `jax.lax.scan`. A finished state stands still:
nothing in here starts a new episode. A training loop that wants one puts `reset`'s state in place of the finished one,
after it has recorded that. `step` draws nothing; only `reset` needs a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from vm import observation
from vm.edits import STOP, apply_action
from vm.observation import Observation, run_all
from vm.tasks import TaskArrays
from vm.types import DEFAULT_SETTINGS, Examples, Program, Result, Settings, values_equal


class State(NamedTuple):
    """An episode between two actions; leading batch axes allowed. A policy sees `observe(state)`, not this.

    Attributes:
      public: `Examples[E]`, whose inputs are observed.
      hidden: `Examples[H]`, which only judge.
      program: `Program[L]`.
      results: `Result[E + H]`, what the program gives for the public and then the hidden inputs.
      right: bool `[E + H]`, which of these outputs are their targets.
      step: int32 `[]`, edits attempted.
      budget: int32 `[]`, edits left.
      invalid: int32 `[]`, those attempted edits that were invalid.
      reward: float32 `[]`, of the last action; 0 at first and from the end on.
      terminated: bool `[]`, the episode ended by STOP.
      truncated: bool `[]`, the episode ended because the budget was spent.
    """

    public: Examples
    hidden: Examples
    program: Program
    results: Result
    right: jax.Array
    step: jax.Array
    budget: jax.Array
    invalid: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array

    @property
    def solved(self) -> jax.Array:
        """Whether the program gets every example right: bool `[]`."""
        return jnp.all(self.right, axis=-1)

    @property
    def done(self) -> jax.Array:
        """Whether the episode is over: bool `[]`."""
        return self.terminated | self.truncated


Reward = Callable[[State, State], jax.Array]
"""The reward of an action, float32 `[]`, from the states before and after it; the latter's own `reward` is unset."""


def solved_at_end(before: State, after: State) -> jax.Array:
    """1 when the episode ends with a program that solves the task, whatever ended it; 0 otherwise."""
    del before
    return (after.done & after.solved).astype(jnp.float32)


def init(task: TaskArrays, budget: jax.Array | int, settings: Settings = DEFAULT_SETTINGS) -> State:
    """The first state of an episode. Unbatched.

    Args:
      task: one task, a row of `make_tasks(...).arrays`. Its `start` is where the episode begins.
      budget: int32 `[]`, edits allowed. With 0 or less the episode is over at once.
      settings: static sizes.
    """
    chex.assert_shape([task.start.op, task.start.arg], (settings.slots,))
    chex.assert_shape(budget, ())
    task = jax.tree.map(jnp.asarray, task)  # host arrays will do too
    budget = jnp.maximum(jnp.asarray(budget, jnp.int32), 0)
    results, right = _judge(task.start, task.public, task.hidden, settings)
    zero = jnp.zeros((), jnp.int32)
    return State(
        public=task.public,
        hidden=task.hidden,
        program=task.start,
        results=results,
        right=right,
        step=zero,
        budget=budget,
        invalid=zero,
        reward=jnp.zeros((), jnp.float32),
        terminated=jnp.zeros((), bool),
        truncated=budget == 0,
    )


def reset(key: jax.Array, tasks: TaskArrays, budget: jax.Array | int, settings: Settings = DEFAULT_SETTINGS) -> State:
    """The first state of an episode of one of several tasks, each as likely. Unbatched in key and budget.

    Args:
      key: a typed key.
      tasks: N tasks, batch axis first.
      budget: int32 `[]`, edits allowed.
      settings: static sizes.
    """
    which = jax.random.randint(key, (), 0, tasks.family.shape[0])
    return init(jax.tree.map(lambda leaf: jnp.asarray(leaf)[which], tasks), budget, settings)


def step(
    state: State, action: jax.Array | int, settings: Settings = DEFAULT_SETTINGS, reward: Reward = solved_at_end
) -> State:
    """The state after one action. Unbatched; a finished state comes back as it is, with reward 0.

    Args:
      state: where the action is taken.
      action: int32 `[]`, numbered as in `vm.edits`; any integer is allowed, those that name no edit are invalid.
      settings: static sizes.
      reward: what the action earns.
    """
    chex.assert_shape(action, ())
    action = jnp.asarray(action, jnp.int32)
    program, valid = apply_action(state.program, action, settings)
    results, right = _judge(program, state.public, state.hidden, settings)
    stops = action == STOP
    spent = (~stops).astype(jnp.int32)
    after = state._replace(
        program=program,
        results=results,
        right=right,
        step=state.step + spent,
        budget=state.budget - spent,
        invalid=state.invalid + (~valid).astype(jnp.int32),
        terminated=stops,
        truncated=~stops & (state.budget <= spent),
    )
    after = after._replace(reward=reward(state, after))
    frozen = state._replace(reward=jnp.zeros_like(state.reward))
    return jax.tree.map(lambda old, new: jnp.where(state.done, old, new), frozen, after)


def observe(state: State, settings: Settings = DEFAULT_SETTINGS) -> Observation:
    """What a policy may see: the program and its behaviour on the public inputs, without any target. Unbatched."""
    public = state.public.targets.type.shape[0]
    results = jax.tree.map(lambda leaf: leaf[:public], state.results)
    return observation.observe(state.program, state.public.inputs, results, state.step, state.budget, settings)


def _judge(program: Program, public: Examples, hidden: Examples, settings: Settings) -> tuple[Result, jax.Array]:
    """What a program gives for all examples, public ones first, and which of that is right: bool `[E + H]`."""
    examples = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), public, hidden)
    results = run_all(program, examples.inputs, settings)
    return results, values_equal(results.output, examples.targets)
