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


class FixedRewardSizes(NamedTuple):
    """Rewards of the original's events. It did not publish its sizes; these are ours.

    Attributes:
      solved, false_stop: a right STOP (or a solved end), and a false one.
      kept, destroyed: an edit after which the reference still fits the budget left, and one after which it no longer
        does. An edit made when it was already out of reach earns nothing.
    """

    solved: float = 1.0
    false_stop: float = -0.5
    kept: float = 0.2
    destroyed: float = -0.5


DEFAULT_REWARDS = RewardSizes()
ORIGINAL_REWARDS = FixedRewardSizes()


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
    events = _ending_rewards(active, stopped, solved, sizes.solved, sizes.false_stop)
    events = events + jnp.where(stopped, 0.0, sizes.step)
    shaping = jnp.where(_last(active), 0.0, potential[..., 1:]) - potential[..., :-1]
    return jnp.where(active, events + shaping, 0.0)


def fixed_step_rewards(
    active: jax.Array,
    stopped: jax.Array,
    solved: jax.Array,
    reachable: jax.Array,
    sizes: FixedRewardSizes = ORIGINAL_REWARDS,
) -> jax.Array:
    """The original's reward of each decision: a bonus for harmless edits and a fine for harmful ones, of fixed sizes.

    Not potential-based: a harmless edit that leads nowhere earns as much as one that repairs, so the longest
    trajectory may win. `step_rewards` is what cures it.

    Args:
      active: bool `[..., T]`, a decision was taken here.
      stopped: bool `[..., T]`, it was STOP.
      solved: bool `[..., T + 1]`, of the program before each decision, and at the end.
      reachable: bool `[..., T + 1]`, whether the reference fits the budget left there.
      sizes: of the events.

    Returns:
      float32 `[..., T]`, zero where inactive.
    """
    chex.assert_equal_shape([active, stopped, solved[..., 1:], reachable[..., 1:]])
    events = _ending_rewards(active, stopped, solved, sizes.solved, sizes.false_stop)
    edits = jnp.where(reachable[..., 1:], sizes.kept, sizes.destroyed)
    edits = jnp.where(reachable[..., :-1] & ~stopped, edits, 0.0)
    return jnp.where(active, events + edits, 0.0)


def _last(active: jax.Array) -> jax.Array:
    """The last decision of each episode: bool `[..., T]`."""
    after = jnp.concatenate([active[..., 1:], jnp.zeros_like(active[..., :1])], axis=-1)
    return active & ~after


def _ending_rewards(
    active: jax.Array, stopped: jax.Array, solved: jax.Array, right: float, false_stop: float
) -> jax.Array:
    """Reward of STOP and of an end that a spent budget made: float32 `[..., T]`."""
    at_stop = jnp.where(solved[..., :-1], right, false_stop)
    at_end = jnp.where(_last(active) & solved[..., 1:], right, 0.0)
    return jnp.where(stopped, at_stop, at_end)


def group_advantages(returns: jax.Array, norm_std: bool = False) -> jax.Array:
    """Trajectory-level credit: each return less its group's mean (GRPO, arXiv 2402.03300; Dr. GRPO without the std).

    A group of equal returns gets exactly 0, and so does a group of one. That is decided on the raw numbers: in float32
    the mean of equal numbers is often one unit in the last place off. A return that is not finite says nothing: it gets
    0, and its group is compared without it.

    Args:
      returns: float32 `[..., G]`.
      norm_std: divide by the group's population standard deviation, as the original GRPO does.
    """
    counts = jnp.isfinite(returns)
    known = jnp.where(counts, returns, 0.0)
    total = jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), 1)
    centred = jnp.where(counts, known - jnp.sum(known, axis=-1, keepdims=True) / total, 0.0)
    spread = has_spread(returns)[..., None]
    if norm_std:
        variance = jnp.sum(jnp.square(centred), axis=-1, keepdims=True) / total
        centred = centred / jnp.sqrt(jnp.where(spread, variance, 1.0))
    return jnp.where(spread, centred, 0.0)


def has_spread(returns: jax.Array) -> jax.Array:
    """Whether the finite returns of a group differ: float32 `[..., G]` to bool `[...]`."""
    counts = jnp.isfinite(returns)
    high = jnp.max(jnp.where(counts, returns, -jnp.inf), axis=-1)
    return high > jnp.min(jnp.where(counts, returns, jnp.inf), axis=-1)


class ReturnSpread(NamedTuple):
    """How far returns `[..., G]` lie apart, all float32 `[]`; only the last two concern group-relative credit.

    Attributes:
      batch_std: population standard deviation over all returns.
      group_std: mean over groups of each one's own.
      zero_groups: share of groups whose returns are all equal, from which nothing is learnt.
    """

    batch_std: jax.Array
    group_std: jax.Array
    zero_groups: jax.Array


def return_spread(returns: jax.Array) -> ReturnSpread:
    """The spread of returns float32 `[..., G]` over the batch and within its groups."""
    spread = has_spread(returns)
    known = jnp.where(jnp.isfinite(returns), returns, jnp.nan)
    return ReturnSpread(
        batch_std=jnp.nanstd(known),
        group_std=jnp.mean(jnp.where(spread, jnp.nanstd(known, axis=-1), 0.0)),
        zero_groups=1.0 - jnp.mean(spread.astype(jnp.float32)),
    )


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

    Each action adds p d - p + r, where r is the reference's probability and d = log p - log r. As p and r both sum to 1
    that changes nothing, but every term is at least 0 and of second order in d: rounding of log-probabilities neither
    gives equal policies a KL, or a negative one, nor pulls at them. Actions that neither allows have log-probability
    `NEVER` in both and add exactly 0.
    """
    probs, gap = jnp.exp(log_probs), log_probs - reference
    near = jnp.abs(gap) < 1.0
    small = jnp.where(near, gap, 0.0)
    terms = jnp.where(near, probs * (small + jnp.expm1(-small)), probs * gap - probs + jnp.exp(reference))
    return jnp.sum(terms, axis=-1)


def entropy(log_probs: jax.Array) -> jax.Array:
    """Entropy in nats of log-probabilities `[..., N]`."""
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
