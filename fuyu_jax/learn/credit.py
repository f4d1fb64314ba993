"""Rewards of rollouts, and the credit that each decision gets of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fuyu_jax.learn.experience import Explored
from fuyu_jax.learn.losses.policy_gradient import (
    fixed_step_rewards,
    group_advantages,
    has_spread,
    same_state_advantages,
    step_rewards,
)
from fuyu_jax.learn.losses.shuffle import shuffle_entries
from fuyu_jax.rollout import Episodes
from vm.beam import hash_numbers


@dataclass(frozen=True)
class CreditOptions:
    """What is rewarded, and how decisions are credited.

    Attributes:
      reward: which potentials are rewarded beside the end: `terminal` none, `execution` the public share passed,
        `reachability` also whether the reference fits the budget left, which only the oracle knows.
      shaping: `potential`, or `fixed`: a bonus for each edit that keeps the reference in reach and a fine for one that
        does not, as the original had it.
      credit: `step` compares decisions taken in the same state, and adds a part of the trajectory's advantage;
        `trajectory` gives every decision of a trajectory the same.
      norm_std: divide a group's advantages by their standard deviation.
      trajectory_weight: that part.
      limit: step credit is clipped to this size.
      shuffle: hand the rewards of whole trajectories to other trajectories of the turn: the control.
    """

    reward: str
    shaping: str = "potential"
    credit: str = "step"
    norm_std: bool = False
    trajectory_weight: float = 0.5
    limit: float = 2.0
    shuffle: bool = False

    @property
    def asks_oracle(self) -> bool:
        """Whether rewards say anything that the verifier alone could not."""
        return self.reward == "reachability" or self.shaping == "fixed"


class Credit(NamedTuple):
    """Attributes of a turn's decisions, `[T, B, G]`.

    Attributes:
      advantage: float32.
      live: bool, the returns of the decision's group differ.
    """

    advantage: jax.Array
    live: jax.Array


def potentials(reward: str, explored: Explored) -> jax.Array:
    """Potential of each state, float32 `[T + 1, B, G]`: none, the public share passed, also whether it can be done."""
    if reward == "terminal":
        return jnp.zeros(explored.distance.shape)
    share = explored.episodes.public.astype(jnp.float32) / explored.tasks.public.targets.type.shape[-1]
    return share if reward == "execution" else 0.5 * share + 0.5 * explored.reachable()


@functools.partial(jax.jit, static_argnames="options")
def decision_rewards(explored: Explored, options: CreditOptions) -> jax.Array:
    """Reward of each decision of the rollouts: float32 `[T, B, G]`, 0 where none was taken."""
    episodes = explored.episodes
    time_last = lambda leaf: jnp.moveaxis(leaf, 0, 2)  # noqa: E731
    stopped = episodes.active & (episodes.action == 0)
    active, stopped, solved = (time_last(leaf) for leaf in (episodes.active, stopped, episodes.solved))
    if options.shaping == "fixed":
        rewards = fixed_step_rewards(active, stopped, solved, time_last(explored.reachable()))
    else:
        rewards = step_rewards(active, stopped, solved, time_last(potentials(options.reward, explored)))
    return jnp.moveaxis(rewards, 2, 0)


def advantages(episodes: Episodes, rewards: jax.Array, options: CreditOptions) -> jax.Array:
    """Credit of every decision, float32 `[T, B, G]`, of rewards shaped alike."""
    steps, tasks, group = rewards.shape
    by_trajectory = group_advantages(jnp.sum(rewards, axis=0), options.norm_std)[None]  # [1, B, G]
    if options.credit == "trajectory":
        return jnp.where(episodes.active, by_trajectory, 0.0)
    flat = lambda leaf: jnp.moveaxis(leaf, 1, 0).reshape(tasks, steps * group)  # noqa: E731
    numbers = jnp.concatenate([episodes.program.op, episodes.program.arg], axis=-1)[:-1]  # [T, B, G, 2 L]
    state = hash_numbers(numbers)
    by_step = jax.vmap(same_state_advantages)(flat(rewards), flat(state), flat(episodes.active))
    by_step = jnp.moveaxis(by_step.reshape(tasks, steps, group), 0, 1)
    total = by_step + options.trajectory_weight * by_trajectory
    return jnp.where(episodes.active, jnp.clip(total, -options.limit, options.limit), 0.0)


@functools.partial(jax.jit, static_argnames="options")
def credit_decisions(explored: Explored, rewards: jax.Array, key: jax.Array, options: CreditOptions) -> Credit:
    """The credit of a turn's decisions; the key is used by the control only."""
    episodes = explored.episodes
    if options.shuffle:
        everyone = jnp.ones(explored.budget.shape, bool)
        moved = shuffle_entries(key, jnp.moveaxis(rewards, 0, 2), everyone)
        rewards = jnp.where(episodes.active, jnp.moveaxis(moved, 2, 0), 0.0)
    live = has_spread(jnp.sum(rewards, axis=0))  # [B]
    return Credit(advantages(episodes, rewards, options), jnp.broadcast_to(live[None, :, None], episodes.active.shape))
