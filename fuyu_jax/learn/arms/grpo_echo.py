"""Arm `grpo_echo`: groups of rollouts, process reward, ECHO loss and a DAgger-style anchor to the oracle.

Each turn: roll out a group from every task's start; credit each decision by its shaped reward against the group's
decisions in the same state, plus half of its trajectory's advantage; then a few clipped updates, held near the copied
policy by the exact KL over the action set, by the oracle's labels on the policy's own states (the anchor) and by
copied demonstrations (replay).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from fuyu_jax.controller import Readout, action_log_probs
from fuyu_jax.learn.arms.bc import Cloning, Report
from fuyu_jax.learn.experience import Experience, RolloutOptions, make_collect, taken
from fuyu_jax.learn.losses.policy_gradient import clipped_policy_loss, entropy, exact_kl
from fuyu_jax.learn.losses.reduce import weighted_sum
from fuyu_jax.learn.objective import ImitationWeights, Shares, echo_terms, imitation_terms, state_shares
from fuyu_jax.learn.training import (
    Gradients,
    Loss,
    Metrics,
    accumulated_gradient,
    add_scaled,
    learning_rates,
    start_training,
    take_step,
)
from fuyu_jax.policy import Params, Play, Policy
from vm.streams import TaskStream


@dataclass(frozen=True)
class GrpoOptions:
    """Sizes and weights of the arm.

    Attributes:
      updates: optimiser steps in all; rounds: parts after each of which the policy is handed out.
      rollout_tasks: tasks of one turn; reuse: passes over a turn's decisions.
      batch_tasks: tasks in one update, a divisor of `rollout_tasks`.
      learning_rate: peak.
      kl_weight, anchor_weight, replay_weight, echo_weight, value_weight, entropy_weight: of the loss terms.
      clip_low, clip_high: bounds of the probability ratio.
      pieces: parts that an update's gradient is accumulated from.
      weights: of the supervised terms.
    """

    updates: int
    rounds: int
    rollout_tasks: int
    reuse: int
    batch_tasks: int
    learning_rate: float
    kl_weight: float
    anchor_weight: float
    replay_weight: float
    echo_weight: float
    value_weight: float = 0.25
    entropy_weight: float = 1e-3
    clip_low: float = 0.2
    clip_high: float = 0.28
    pieces: int = 1
    weights: ImitationWeights = ImitationWeights()

    @property
    def updates_per_turn(self) -> int:
        """Updates made from one turn's rollouts."""
        return self.reuse * (self.rollout_tasks // self.batch_tasks)


def policy_terms(readout: Readout, batch: Experience, share: jax.Array, options: GrpoOptions) -> Metrics:
    """The reward's part of the loss, and what tells whether it is healthy; `share` `[B, M]` of each decision."""
    log_probs = action_log_probs(readout.stop_logit, readout.edit_logits, batch.allowed)
    clipped = clipped_policy_loss(
        taken(log_probs, batch.states.action),
        batch.old_log_prob,
        batch.advantage,
        options.clip_low,
        options.clip_high,
    )
    value = optax.sigmoid_binary_cross_entropy(readout.value_logit, batch.won.astype(jnp.float32))
    return {
        "policy_loss": weighted_sum(clipped.loss, share),
        "kl_loss": weighted_sum(exact_kl(log_probs, batch.reference), share),
        "entropy": weighted_sum(entropy(log_probs), share),
        "value_loss": weighted_sum(value, share),
        "clip_fraction": weighted_sum(clipped.clipped.astype(jnp.float32), share),
    }


def grpo_loss(policy: Policy, options: GrpoOptions) -> Loss:
    """The arm's loss on part of an update's decisions: a function of parameters and `(Experience, Shares)`."""

    def loss(params: Params, part: tuple[Experience, Shares]) -> tuple[jax.Array, Metrics]:
        batch, share = part
        controller, read = policy.reader(params, batch.tasks)
        readout = read(batch.states.seen)
        terms = policy_terms(readout, batch, share.all, options)
        anchor = imitation_terms(readout, batch.states, share, options.weights)
        echo = echo_terms(controller, readout, batch.states, share)
        total = (
            terms["policy_loss"]
            + options.kl_weight * terms["kl_loss"]
            - options.entropy_weight * terms["entropy"]
            + options.value_weight * terms["value_loss"]
            + options.anchor_weight * anchor["loss"]
            + options.echo_weight * echo["echo_loss"]
        )
        tokens = policy.count_tokens(batch.tasks, batch.states.weight)
        return total, {**anchor, **terms, **echo, "loss": total, "anchor_loss": anchor["loss"], "tokens": tokens}

    return loss


def improve(
    policy: Policy,
    play: Play,
    params: Params,
    cloning: Cloning,
    stream: TaskStream,
    options: GrpoOptions,
    rollouts: RolloutOptions,
    key: jax.Array,
    report: Report,
    report_signals: Report,
) -> Iterator[Params]:
    """Update a copied policy and hand out the parameters after each round.

    Args:
      policy: the controller's structure and tokens.
      play: the episodes of its controller.
      params: the copied policy, which also stays the reference of the KL.
      cloning: the cloning that made the policy; its demonstrations are replayed.
      stream: train tasks to roll out.
      options: sizes and weights of the updates.
      rollouts: how experience is made.
      key: typed key.
      report: called after each update with its number, from 1.
      report_signals: called after each turn's rollouts, with the number of updates made before.
    """
    roll_key, replay_key = jax.random.split(key)
    rate = learning_rates(options.learning_rate, options.updates)
    collect = make_collect(policy, play, rollouts)
    replay_weight = jnp.float32(options.replay_weight)
    loss = grpo_loss(policy, options)

    @jax.jit
    def grpo_gradient(params: Params, turn: Experience, first: jax.Array) -> tuple[Gradients, Metrics]:
        batch = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, options.batch_tasks), turn)
        share = state_shares(batch.states, options.weights)
        return accumulated_gradient(loss, params, (batch, share), options.pieces)

    state = start_training(params)
    done = 0
    for round_number in range(1, options.rounds + 1):
        while done < options.updates * round_number // options.rounds:
            tasks, _ = stream.next_batch(options.rollout_tasks)
            turn, signals = collect(state.params, params, tasks, jax.random.fold_in(roll_key, done))
            report_signals(done, signals)
            for part in range(min(options.updates_per_turn, options.updates - done)):
                first = part * options.batch_tasks % options.rollout_tasks
                gradient, metrics = grpo_gradient(state.params, turn, jnp.int32(first))
                replayed, replay = cloning.gradient(state.params, jax.random.fold_in(replay_key, done))
                done += 1
                state, step = take_step(state, add_scaled(gradient, replayed, replay_weight), rate(done))
                tokens = metrics["tokens"] + replay["tokens"]
                report(done, {**metrics, **step, "replay_loss": replay["loss"], "tokens": tokens})
        yield state.params
