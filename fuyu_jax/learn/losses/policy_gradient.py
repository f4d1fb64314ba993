"""Rewards, group-relative advantages, the clipped objective and the exact KL over the action set."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class RewardSizes(NamedTuple):
    """Rewards of the episode's events: a right STOP (or a solved end), a false STOP, and each edit."""

    solved: float = 1.0
    false_stop: float = -0.2
    step: float = -0.01


DEFAULT_REWARDS = RewardSizes()


def step_rewards(
    active: jax.Array, stopped: jax.Array, solved: jax.Array, potential: jax.Array, sizes: RewardSizes = DEFAULT_REWARDS
) -> jax.Array:
    """Reward of each decision: the episode's events plus potential-based shaping (Ng et al. 1999), undiscounted.

    Args:
      active: bool `[..., T]`, a decision was taken here.
      stopped: bool `[..., T]`, it was STOP.
      solved: bool `[..., T + 1]`, of the program before each decision, and at the end.
      potential: float32 `[..., T + 1]` of the same states; all zeros for no shaping. The end's potential is taken as
        0, which is what leaves the best policy unchanged.
      sizes: of the events.

    Returns:
      float32 `[..., T]`, zero where inactive.
    """
    chex.assert_equal_shape([active, stopped, solved[..., 1:], potential[..., 1:]])
    after = jnp.concatenate([active[..., 1:], jnp.zeros_like(active[..., :1])], axis=-1)
    ends = active & ~after
    now_solved = jnp.where(stopped, solved[..., :-1], solved[..., 1:])
    events = jnp.where(stopped, jnp.where(now_solved, sizes.solved, sizes.false_stop), sizes.step)
    events = events + jnp.where(ends & ~stopped & now_solved, sizes.solved, 0.0)
    shaping = jnp.where(ends, 0.0, potential[..., 1:]) - potential[..., :-1]
    return jnp.where(active, events + shaping, 0.0)


def group_advantages(returns: jax.Array, norm_std: bool = False) -> jax.Array:
    """Trajectory-level credit: each return less its group's mean (GRPO, arXiv 2402.03300; Dr. GRPO without the std).

    A group of equal returns gets exactly 0. That is decided on the raw numbers: in float32 the mean of equal numbers
    is often one unit in the last place off.

    Args:
      returns: float32 `[..., G]`.
      norm_std: divide by the group's population standard deviation, as the original GRPO does.
    """
    centred = returns - jnp.mean(returns, axis=-1, keepdims=True)
    spread = jnp.max(returns, axis=-1, keepdims=True) != jnp.min(returns, axis=-1, keepdims=True)
    if norm_std:
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        centred = centred / jnp.sqrt(jnp.where(spread, variance, 1.0))
    return jnp.where(spread, centred, 0.0)


def same_state_advantages(credit: jax.Array, state: jax.Array, active: jax.Array) -> jax.Array:
    """Step-level credit: each decision's reward less the mean over the group's decisions in the same state.

    The grouping of GiGPO (arXiv 2505.10978) without the division by the standard deviation. A decision that nobody
    else of the group met keeps its own credit: shaped rewards are differences of potentials, so 0 is their baseline.

    Args:
      credit: float32 `[M]`, the shaped rewards of a group's decisions, trajectories and steps flattened.
      state: uint32 `[M]`, a hash of the state each was taken in.
      active: bool `[M]`.
    """
    chex.assert_equal_shape([credit, state, active])
    same = (state[:, None] == state[None, :]) & active[:, None] & active[None, :]  # [M, M]
    count = jnp.sum(same, axis=1)
    mean = jnp.sum(jnp.where(same, credit[None, :], 0.0), axis=1) / jnp.maximum(count, 1)
    low = jnp.min(jnp.where(same, credit[None, :], jnp.inf), axis=1)
    high = jnp.max(jnp.where(same, credit[None, :], -jnp.inf), axis=1)
    shared = jnp.where(low == high, 0.0, credit - mean)
    return jnp.where(active, jnp.where(count > 1, shared, credit), 0.0)


class Clipped(NamedTuple):
    """The clipped objective as a loss, the probability ratio, and where the clip acts; all shaped `[...]`."""

    loss: jax.Array
    ratio: jax.Array
    clipped: jax.Array


def clipped_policy_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, low: float = 0.2, high: float = 0.2
) -> Clipped:
    """PPO's pessimistic objective (arXiv 1707.06347, eq. 7) negated: -min(r A, clip(r, 1 - low, 1 + high) A).

    Log-probabilities are of the whole action; all inputs float32 `[...]`. No gradient flows into the advantage.
    """
    advantage = jax.lax.stop_gradient(advantage)
    ratio = jnp.exp(jnp.clip(log_prob - old_log_prob, -20.0, 20.0))
    bounded = jnp.clip(ratio, 1.0 - low, 1.0 + high)
    loss = jnp.maximum(-ratio * advantage, -bounded * advantage)
    return Clipped(loss, ratio, -bounded * advantage > -ratio * advantage)


def exact_kl(log_probs: jax.Array, reference: jax.Array) -> jax.Array:
    """KL(policy || reference) summed over the whole action set: two `[..., N]` of log-probabilities to `[...]`.

    Actions that neither allows have log-probability `NEVER` in both and add exactly 0.
    """
    return jnp.sum(jnp.exp(log_probs) * (log_probs - reference), axis=-1)


def entropy(log_probs: jax.Array) -> jax.Array:
    """Entropy in nats of log-probabilities `[..., N]`."""
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
