"""Arms `grpo_echo` and `grpo_terminal`: groups of rollouts, reward, ECHO loss and a DAgger-style anchor to the oracle.

Each turn: roll out a group from every task's start; credit each decision by its shaped reward against the group's
decisions in the same state, plus half of its trajectory's advantage; then a few clipped updates, held near the copied
policy by the exact KL over the action set, by the oracle's labels on the policy's own states (the anchor) and by
copied demonstrations (replay). `grpo_terminal` rewards the end alone, and credits it to whole trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fuyu_jax.learn.credit import CreditOptions, credit_decisions, decision_rewards
from fuyu_jax.learn.experience import (
    RolloutOptions,
    Visits,
    label_decisions,
    make_explore,
    process_signals,
    sample_decisions,
)
from fuyu_jax.learn.improvement import Arm
from fuyu_jax.learn.losses.policy_gradient import clipped_policy_loss, entropy, exact_kl
from fuyu_jax.learn.losses.reduce import shares, weighted_sum
from fuyu_jax.learn.objective import (
    ImitationWeights,
    Shares,
    echo_terms,
    imitation_terms,
    state_shares,
    value_term,
)
from fuyu_jax.learn.training import Metrics
from fuyu_jax.policy import Params, Play, Policy, make_score
from vm.streams import TaskStream


@dataclass(frozen=True)
class GrpoOptions:
    """Weights of the arm's loss terms.

    Attributes:
      policy_weight, kl_weight, anchor_weight, echo_weight, value_weight, entropy_weight: of the terms.
      drop_zero_spread: leave groups of equal returns out of the means of the policy's terms.
      clip_low, clip_high: bounds of the probability ratio.
      weights: of the supervised terms.
    """

    kl_weight: float
    anchor_weight: float
    echo_weight: float
    policy_weight: float = 1.0
    value_weight: float = 0.25
    entropy_weight: float = 1e-3
    drop_zero_spread: bool = True
    clip_low: float = 0.2
    clip_high: float = 0.28
    weights: ImitationWeights = ImitationWeights()


class Credited(NamedTuple):
    """Decisions with the credit they got, M of each of B tasks; leading axes `[B, M]`.

    Attributes:
      visits: the decisions, labelled by the oracle.
      advantage, old_log_prob: float32 `[B, M]`.
      live: bool `[B, M]`, the returns of the decision's group differ.
      reference: float32 `[B, M, N]`, log-probabilities of the copied policy.
    """

    visits: Visits
    advantage: jax.Array
    old_log_prob: jax.Array
    live: jax.Array
    reference: jax.Array


class GrpoShares(NamedTuple):
    """What each decision counts in the supervised means, and float32 `[B, M]` in those of the policy's terms."""

    supervised: Shares
    policy: jax.Array


def taken(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    """Log-probability of the action taken: `[..., N]` and int32 `[...]` to `[...]`."""
    return jnp.take_along_axis(log_probs, jnp.maximum(action, 0)[..., None], axis=-1)[..., 0]


def grpo_arm(
    policy: Policy,
    play: Play,
    stream: TaskStream,
    turn_tasks: int,
    rollouts: RolloutOptions,
    credits: CreditOptions,
    options: GrpoOptions,
) -> Arm:
    """The arm on tasks of a stream, `turn_tasks` at a time."""
    explore, score = make_explore(policy, play, rollouts), make_score(policy)
    asks_oracle = options.anchor_weight > 0 or credits.asks_oracle

    def collect(params: Params, copied: Params, key: jax.Array) -> tuple[Credited, Metrics]:
        tasks, _ = stream.next_batch(turn_tasks)
        roll_key, sample_key, shuffle_key = jax.random.split(key, 3)
        explored = explore(params, tasks, roll_key)
        rewards = decision_rewards(explored, credits)
        signals = process_signals(explored, jnp.sum(rewards, axis=0))
        credit = credit_decisions(explored, rewards, shuffle_key, credits)
        chosen = sample_decisions(explored, sample_key, rollouts.states, credit)
        visits = label_decisions(tasks, chosen, policy.settings, rollouts.teaching)
        old = taken(score(params, tasks, visits.states.seen, visits.allowed), visits.states.action)
        reference = score(copied, tasks, visits.states.seen, visits.allowed)
        labels = signals["states"] if asks_oracle else jnp.float32(0.0)
        return Credited(visits, chosen.extra.advantage, old, chosen.extra.live, reference), {
            **signals,
            "oracle_labels": labels,
        }

    def share(rows: Credited) -> GrpoShares:
        weight = rows.visits.states.weight
        counted = jnp.where(rows.live, weight, 0.0) if options.drop_zero_spread else weight
        return GrpoShares(state_shares(rows.visits.states, options.weights), shares(counted))

    def loss(params: Params, batch: tuple[Credited, GrpoShares]) -> tuple[jax.Array, Metrics]:
        rows, share = batch
        visits = rows.visits
        controller, read = policy.reader(params, visits.tasks)
        readout = read(visits.states.seen)
        terms = policy_terms(policy.log_probs(readout, visits.allowed), rows, share.policy, options)
        anchor = imitation_terms(readout, visits.states, share.supervised, options.weights, policy.rules)
        echo = echo_terms(controller, readout, visits.states, share.supervised)
        value = value_term(readout, visits.won, share.supervised)
        total = (
            options.policy_weight * terms["policy_loss"]
            + options.kl_weight * terms["kl_loss"]
            - options.entropy_weight * terms["entropy"]
            + options.value_weight * value
            + options.anchor_weight * anchor["loss"]
            + options.echo_weight * echo["echo_loss"]
        )
        return total, {
            **anchor,
            **terms,
            **echo,
            "anchor_loss": anchor["loss"],
            "value_loss": value,
            "loss": total,
            "tokens": policy.count_tokens(visits.tasks, visits.states.weight),
        }

    return Arm(stream, collect, share, loss)


def policy_terms(log_probs: jax.Array, rows: Credited, share: jax.Array, options: GrpoOptions) -> Metrics:
    """The reward's part of the loss, and what tells whether it is healthy.

    Args:
      log_probs: float32 `[B, M, N]`, of the policy now.
      rows: the decisions.
      share: float32 `[B, M]`, what each counts.
      options: bounds of the ratio.
    """
    clipped = clipped_policy_loss(
        taken(log_probs, rows.visits.states.action),
        rows.old_log_prob,
        rows.advantage,
        options.clip_low,
        options.clip_high,
    )
    return {
        "policy_loss": weighted_sum(clipped.loss, share),
        "kl_loss": weighted_sum(exact_kl(log_probs, rows.reference), share),
        "entropy": weighted_sum(entropy(log_probs), share),
        "clip_fraction": weighted_sum(clipped.clipped.astype(jnp.float32), share),
    }
