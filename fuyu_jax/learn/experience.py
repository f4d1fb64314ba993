"""On-policy experience: groups of rollouts, the credit of their decisions, and what they signal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

import vm
from fuyu_jax.controller import action_log_probs
from fuyu_jax.controller.state_tokens import MAX_BUDGET
from fuyu_jax.learn.losses.policy_gradient import group_advantages, same_state_advantages, step_rewards
from fuyu_jax.learn.states import States, label_states, spread_steps
from fuyu_jax.learn.training import Metrics
from fuyu_jax.policy import Params, Play, Policy
from fuyu_jax.rollout import Episodes
from fuyu_jax.sharding import gather
from vm import oracle
from vm.beam import hash_numbers
from vm.tasks import TaskArrays


@dataclass(frozen=True)
class RolloutOptions:
    """How experience is made.

    Attributes:
      group: rollouts of each task.
      states: decisions of each rollout that are trained on.
      reward: which events and potentials are rewarded: `terminal`, `execution` or `reachability`.
      no_repeat: rule out edits already tried in the same program.
      trajectory_weight: share of the trajectory's advantage beside the step's own.
      advantage_limit: advantages are clipped to this size.
    """

    group: int
    states: int
    reward: str
    no_repeat: bool
    trajectory_weight: float = 0.5
    advantage_limit: float = 2.0


class Experience(NamedTuple):
    """Decisions of one turn, M of each of B tasks; leading axes `[B, M]`.

    Attributes:
      tasks: the B tasks.
      states: where the decisions were taken; `states.action` is 0 for STOP.
      allowed: bool `[B, M, N - 1]`, edits the policy could choose among.
      advantage, old_log_prob: float32 `[B, M]`.
      reference: float32 `[B, M, N]`, log-probabilities of the copied policy.
      won: bool `[B, M]`, whether the episode ended solved.
    """

    tasks: TaskArrays
    states: States
    allowed: jax.Array
    advantage: jax.Array
    old_log_prob: jax.Array
    reference: jax.Array
    won: jax.Array


def potentials(reward: str, episodes: Episodes, distance: jax.Array, budget: jax.Array, public: int) -> jax.Array:
    """Potential of each state, float32 `[T + 1, B, G]`: none, the public share passed, or also whether the end is near.

    Args:
      reward: which.
      episodes: the rollouts.
      distance: int32 `[T + 1, B, G]`, the oracle's.
      budget: int32 `[B, G]`, at the start.
      public: number of public examples.
    """
    if reward == "terminal":
        return jnp.zeros(distance.shape)
    share = episodes.public.astype(jnp.float32) / public
    if reward == "execution":
        return share
    return 0.5 * share + 0.5 * _reachable(distance, budget)


def _reachable(distance: jax.Array, budget: jax.Array) -> jax.Array:
    """Whether the reference still fits the budget left: bool `[T + 1, B, G]`."""
    spent = jnp.arange(distance.shape[0], dtype=jnp.int32).reshape(-1, 1, 1)
    return distance <= budget[None] - spent


def advantages(episodes: Episodes, rewards: jax.Array, trajectory_weight: float, limit: float) -> jax.Array:
    """Credit of every decision, float32 `[T, B, G]`: its own step's against the same state, and its trajectory's.

    Args:
      episodes: G rollouts of each task from one start with one budget.
      rewards: float32 `[T, B, G]`.
      trajectory_weight: of the trajectory's group-relative return.
      limit: the sum is clipped to this size.
    """
    steps, tasks, group = rewards.shape
    flat = lambda leaf: jnp.moveaxis(leaf, 1, 0).reshape(tasks, steps * group)  # noqa: E731
    numbers = jnp.concatenate([episodes.program.op, episodes.program.arg], axis=-1)[:-1]  # [T, B, G, 2 L]
    state = hash_numbers(numbers)
    by_step = jax.vmap(same_state_advantages)(flat(rewards), flat(state), flat(episodes.active))
    by_step = jnp.moveaxis(by_step.reshape(tasks, steps, group), 0, 1)
    by_trajectory = group_advantages(jnp.sum(rewards, axis=0))  # [B, G]
    total = by_step + trajectory_weight * by_trajectory[None]
    return jnp.where(episodes.active, jnp.clip(total, -limit, limit), 0.0)


def _signals(episodes: Episodes, rewards: jax.Array, distance: jax.Array, budget: jax.Array) -> Metrics:
    """The process signals that the original reports, and the spread that group-relative credit lives on."""
    returns = jnp.sum(rewards, axis=0)  # [B, G]
    edited = episodes.active & (episodes.action != 0)  # [T, B, G]
    stopped = jnp.any(episodes.active & (episodes.action == 0), axis=0)
    reachable = _reachable(distance, budget)
    won = episodes.solved[-1]
    spread = jnp.max(returns, axis=-1) != jnp.min(returns, axis=-1)
    count = lambda mask: jnp.sum(mask).astype(jnp.float32)  # noqa: E731
    decisions = jnp.maximum(count(episodes.active), 1.0)
    edits = jnp.maximum(count(edited), 1.0)
    return {
        "rollout_success": jnp.mean(won.astype(jnp.float32)),
        "reachable_after": count(edited & reachable[1:]) / edits,
        "destroyed_reachability": count(edited & reachable[:-1] & ~reachable[1:]) / edits,
        "false_stop": jnp.mean((stopped & ~won).astype(jnp.float32)),
        "valid_edits": count(episodes.valid) / edits,
        "repair_labels": count(episodes.active & ~episodes.solved[:-1]),
        "candidates_per_state": count(episodes.active[..., None] & episodes.allowed) / decisions,
        "reward_mean": jnp.mean(returns),
        "reward_std": jnp.std(returns),
        "zero_spread_groups": 1.0 - jnp.mean(spread.astype(jnp.float32)),
        "states": count(episodes.active),
    }


def taken(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    """Log-probability of the action taken: `[..., N]` and int32 `[...]` to `[...]`."""
    return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]


class _Decisions(NamedTuple):
    """Decisions that were sampled from rollouts, `[B, M]`: where, what and with which credit; see `Experience`."""

    program: vm.Program
    action: jax.Array
    step: jax.Array
    budget: jax.Array
    weight: jax.Array
    allowed: jax.Array
    advantage: jax.Array
    won: jax.Array


Collect = Callable[[Params, Params, TaskArrays, jax.Array], tuple[Experience, Metrics]]


def make_collect(policy: Policy, play: Play, options: RolloutOptions) -> Collect:
    """A function of the parameters, the copied policy's, tasks and a key, which makes one turn's experience.

    It rolls out a group for each task, credits the decisions, samples those to train on and scores them with both
    policies; the process signals come with it.
    """

    @jax.jit
    def credit(tasks: TaskArrays, episodes: Episodes, budget: jax.Array, key: jax.Array) -> tuple[_Decisions, Metrics]:
        return _credit(tasks, episodes, budget, key, options, policy.settings)

    @jax.jit
    def score(params: Params, tasks: TaskArrays, states: States, allowed: jax.Array) -> jax.Array:
        readout = policy.reader(params, tasks)[1](states.seen)
        return action_log_probs(readout.stop_logit, readout.edit_logits, allowed)

    def collect(params: Params, reference: Params, tasks: TaskArrays, key: jax.Array) -> tuple[Experience, Metrics]:
        lanes = (tasks.family.shape[0], options.group)
        budget_key, lane_key, sample_key = jax.random.split(key, 3)
        budget = jax.random.randint(budget_key, (lanes[0], 1), 1, MAX_BUDGET + 1)
        budget = jnp.broadcast_to(budget, lanes)
        episodes = gather(play(params, tasks, budget, jax.random.split(lane_key, lanes), jnp.asarray(True)))
        chosen, signals = credit(tasks, episodes, budget, sample_key)
        states = label_states(
            tasks, chosen.program, chosen.action, chosen.step, chosen.budget, chosen.weight, policy.settings
        )
        old = taken(score(params, tasks, states, chosen.allowed), states.action)
        copied = score(reference, tasks, states, chosen.allowed)
        return Experience(tasks, states, chosen.allowed, chosen.advantage, old, copied, chosen.won), signals

    return collect


def _credit(
    tasks: TaskArrays,
    episodes: Episodes,
    budget: jax.Array,
    key: jax.Array,
    options: RolloutOptions,
    settings: vm.Settings,
) -> tuple[_Decisions, Metrics]:
    """Credit the decisions of a group of rollouts for each task, and sample those to train on."""
    count, group = budget.shape
    distance = _distances(episodes.program, tasks.reference, settings)
    time_last = lambda leaf: jnp.moveaxis(leaf, 0, 2)  # noqa: E731
    potential = potentials(options.reward, episodes, distance, budget, tasks.public.targets.type.shape[-1])
    stopped = episodes.active & (episodes.action == 0)
    rewards = step_rewards(
        time_last(episodes.active), time_last(stopped), time_last(episodes.solved), time_last(potential)
    )
    rewards = jnp.moveaxis(rewards, 2, 0)  # [T, B, G]
    credit = advantages(episodes, rewards, options.trajectory_weight, options.advantage_limit)

    length = jnp.sum(episodes.active, axis=0)  # [B, G]
    sample = jax.vmap(jax.vmap(lambda k, n: spread_steps(k, n, options.states)))
    step = sample(jax.random.split(key, (count, group)), length)  # [B, G, S]
    b = jnp.arange(count, dtype=jnp.int32).reshape(-1, 1, 1)
    g = jnp.arange(group, dtype=jnp.int32).reshape(1, -1, 1)
    flat = lambda leaf: leaf.reshape(count, group * options.states, *leaf.shape[3:])  # noqa: E731
    pick = lambda leaf: flat(leaf[step, b, g])  # noqa: E731
    share = length / options.states  # decisions that each sample stands for
    decisions = _Decisions(
        program=jax.tree.map(pick, episodes.program),
        action=pick(episodes.action),
        step=flat(step),
        budget=budget[:, :1] - flat(step),
        weight=flat(jnp.broadcast_to(share[..., None], step.shape)),
        allowed=pick(episodes.allowed),
        advantage=pick(credit),
        won=flat(jnp.broadcast_to(episodes.solved[-1][..., None], step.shape)),
    )
    return decisions, _signals(episodes, rewards, distance, budget)


def _distances(program: vm.Program, reference: vm.Program, settings: vm.Settings) -> jax.Array:
    """The oracle's distance of programs `[T, B, G, L]` to references `[B, L]`: int32 `[T, B, G]`."""
    one = lambda p, r: oracle.distance(p, r, settings).distance  # noqa: E731
    return jax.vmap(jax.vmap(jax.vmap(one, (0, None))), (0, None))(program, reference)
