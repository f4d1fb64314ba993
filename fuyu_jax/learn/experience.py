"""On-policy experience: groups of rollouts, what they signal, and the decisions of theirs that are trained on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import vm
from fuyu_jax.controller.state_tokens import MAX_BUDGET
from fuyu_jax.learn.losses.policy_gradient import return_spread
from fuyu_jax.learn.states import Repairs, States, Teaching, label_states, lay_out, spread_steps
from fuyu_jax.learn.training import Metrics
from fuyu_jax.policy import Params, Play, Policy
from fuyu_jax.rollout import Episodes, repeat_lanes
from fuyu_jax.sharding import gather
from vm import oracle
from vm.tasks import TaskArrays


@dataclass(frozen=True)
class RolloutOptions:
    """How experience is made.

    Attributes:
      group: rollouts of each task.
      states: decisions of each rollout that are trained on.
      teaching: layouts that are rolled out, and where labels lead.
    """

    group: int
    states: int
    teaching: Teaching = Teaching()


class Explored(NamedTuple):
    """A group of G sampled rollouts for each of B tasks.

    Attributes:
      tasks: the B tasks.
      episodes: time first, `[T, B, G]`.
      budget: int32 `[B, G]`, the same for a whole group.
      distance: int32 `[T + 1, B, G]`, edits to the reference, which only the oracle knows.
    """

    tasks: TaskArrays
    episodes: Episodes
    budget: jax.Array
    distance: jax.Array

    def reachable(self) -> jax.Array:
        """Whether the reference still fits the budget left: bool `[T + 1, B, G]`."""
        spent = jnp.arange(self.distance.shape[0], dtype=jnp.int32).reshape(-1, 1, 1)
        return self.distance <= self.budget[None] - spent


class Visits(NamedTuple):
    """Decisions of one turn's rollouts, M of each of B tasks; leading axes `[B, M]`.

    Attributes:
      tasks: the B tasks.
      states: where the decisions were taken, labelled; `states.action` is 0 for STOP.
      allowed: bool `[B, M, N - 1]`, edits the policy could choose among.
      won: bool `[B, M]`, whether the episode ended solved.
    """

    tasks: TaskArrays
    states: States
    allowed: jax.Array
    won: jax.Array


Explore = Callable[[Params, TaskArrays, jax.Array], Explored]


def make_explore(policy: Policy, play: Play, options: RolloutOptions) -> Explore:
    """A function of parameters, B tasks and a key: a group of sampled rollouts for each task, with a drawn budget."""

    def explore(params: Params, tasks: TaskArrays, key: jax.Array) -> Explored:
        lanes = (tasks.family.shape[0], options.group)
        budget_key, lane_key, layout_key = jax.random.split(key, 3)
        budget = jax.random.randint(budget_key, (lanes[0], 1), 1, MAX_BUDGET + 1)
        budget = jnp.broadcast_to(budget, lanes)
        start, _ = lay_out(tasks, jax.random.split(layout_key, lanes[0]), options.teaching.gaps, policy.settings)
        starts = repeat_lanes(start, options.group)
        episodes = gather(play(params, tasks, starts, budget, jax.random.split(lane_key, lanes), jnp.asarray(True)))
        distance = _distances(episodes.program, tasks, policy.settings, options.teaching.placement)
        return Explored(tasks, episodes, budget, distance)

    return explore


@functools.partial(jax.jit, static_argnames=("settings", "placement"))
def _distances(program: vm.Program, tasks: TaskArrays, settings: vm.Settings, placement: oracle.Placement) -> jax.Array:
    """The oracle's distance of programs `[T, B, G, L]` of B tasks: int32 `[T, B, G]`."""

    def one(program: vm.Program, reference: vm.Program, length: jax.Array) -> jax.Array:
        return oracle.distance(program, reference, settings, placement, length).distance

    each_lane = jax.vmap(one, (0, None, None))
    return jax.vmap(jax.vmap(each_lane), (0, None, None))(program, tasks.reference, tasks.length)


def count_executions(episodes: Episodes, tasks: TaskArrays) -> jax.Array:
    """Executions of a program on an example that episodes took, the final programs' among them: float32 `[]`."""
    examples = tasks.public.targets.type.shape[-1] + tasks.hidden.targets.type.shape[-1]
    decisions = jnp.sum(episodes.active).astype(jnp.float32)
    return (decisions + episodes.solved[-1].size) * examples


@jax.jit
def process_signals(explored: Explored, returns: jax.Array) -> Metrics:
    """The process signals that the original reports, and the spread that group-relative credit lives on.

    Args:
      explored: a turn's rollouts.
      returns: float32 `[B, G]`, the reward of each.
    """
    episodes, reachable = explored.episodes, explored.reachable()
    edited = episodes.active & (episodes.action != 0)  # [T, B, G]
    stopped = jnp.any(episodes.active & (episodes.action == 0), axis=0)
    won = episodes.solved[-1]
    count = lambda mask: jnp.sum(mask).astype(jnp.float32)  # noqa: E731
    states, edits = count(episodes.active), jnp.maximum(count(edited), 1.0)
    return {
        "rollout_success": jnp.mean(won.astype(jnp.float32)),
        "reachable_after": count(edited & reachable[1:]) / edits,
        "destroyed_reachability": count(edited & reachable[:-1] & ~reachable[1:]) / edits,
        "false_stop": jnp.mean((stopped & ~won).astype(jnp.float32)),
        "valid_edits": count(episodes.valid) / edits,
        "repair_labels": count(episodes.active & ~episodes.solved[:-1]),
        "candidates_per_state": count(episodes.active[..., None] & episodes.allowed) / jnp.maximum(states, 1.0),
        "reward_mean": jnp.mean(returns),
        "reward_std": jnp.std(returns),
        "zero_spread_groups": return_spread(returns).zero_groups,
        "states": states,
        "executions": count_executions(episodes, explored.tasks),
    }


class Decisions(NamedTuple):
    """Decisions that were sampled from rollouts, `[B, M]`: where, what, and what else is known of them.

    Attributes:
      program: `Program[B, M, L]`, before the decision.
      action, step, budget: int32 `[B, M]`: what was done, after how many edits, with how many left.
      weight: float32 `[B, M]`, how many decisions of its rollout each stands for.
      allowed: bool `[B, M, N - 1]`; won: bool `[B, M]`: see `Visits`.
      extra: a pytree of `[B, M, ...]`, what the caller knows of each decision.
    """

    program: vm.Program
    action: jax.Array
    step: jax.Array
    budget: jax.Array
    weight: jax.Array
    allowed: jax.Array
    won: jax.Array
    extra: Any


@functools.partial(jax.jit, static_argnames="samples")
def sample_decisions(explored: Explored, key: jax.Array, samples: int, extra: Any = ()) -> Decisions:
    """Sample decisions of each rollout, spread evenly over its length.

    Args:
      explored: a turn's rollouts.
      key: typed key.
      samples: static number of decisions of each rollout, so that M is G times this.
      extra: a pytree of `[T, B, G, ...]`, picked along.
    """
    episodes, budget = explored.episodes, explored.budget
    count, group = budget.shape
    length = jnp.sum(episodes.active, axis=0)  # [B, G]
    sample = jax.vmap(jax.vmap(lambda k, n: spread_steps(k, n, samples)))
    step = sample(jax.random.split(key, (count, group)), length)  # [B, G, S]
    b = jnp.arange(count, dtype=jnp.int32).reshape(-1, 1, 1)
    g = jnp.arange(group, dtype=jnp.int32).reshape(1, -1, 1)
    flat = lambda leaf: leaf.reshape(count, group * samples, *leaf.shape[3:])  # noqa: E731
    pick = lambda leaf: flat(leaf[step, b, g])  # noqa: E731
    spread = lambda leaf: flat(jnp.broadcast_to(leaf[..., None], step.shape))  # noqa: E731
    return Decisions(
        program=jax.tree.map(pick, episodes.program),
        action=pick(episodes.action),
        step=flat(step),
        budget=budget[:, :1] - flat(step),
        weight=spread(length / samples),
        allowed=pick(episodes.allowed),
        won=spread(episodes.solved[-1]),
        extra=jax.tree.map(pick, extra),
    )


def label_decisions(
    tasks: TaskArrays, decisions: Decisions, settings: vm.Settings, teaching: Teaching, repairs: Repairs | None = None
) -> Visits:
    """Decisions with their labels, which lead to the references unless `repairs` says where else."""
    states = label_states(
        tasks,
        decisions.program,
        decisions.action,
        decisions.step,
        decisions.budget,
        decisions.weight,
        settings,
        teaching.placement,
        repairs,
    )
    return Visits(tasks, states, decisions.allowed, decisions.won)
