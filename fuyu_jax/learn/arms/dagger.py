"""Arm `dagger`: the oracle labels the states that the policy itself came to (Ross et al. 2011).

It sees the oracle, so it improves beyond copied demonstrations and not beyond a teacher. Its two controls learn from
the oracle's own path instead: `bc_continued` from more of the copied demonstrations, `bc_matched` from demonstrations
of as many fresh tasks as `dagger` meets, with as many labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fuyu_jax.learn.credit import CreditOptions, decision_rewards
from fuyu_jax.learn.demos import DemonstrationSource
from fuyu_jax.learn.experience import (
    RolloutOptions,
    Visits,
    label_decisions,
    make_explore,
    process_signals,
    sample_decisions,
)
from fuyu_jax.learn.improvement import Arm
from fuyu_jax.learn.losses.shuffle import random_cycle
from fuyu_jax.learn.objective import (
    ImitationWeights,
    Shares,
    echo_terms,
    imitation_terms,
    state_shares,
    value_term,
)
from fuyu_jax.learn.states import Repairs, oracle_states, to_references
from fuyu_jax.learn.training import Loss, Metrics
from fuyu_jax.policy import Params, Play, Policy
from vm.streams import TaskStream


@dataclass(frozen=True)
class LabelOptions:
    """Weights of what arms learn from labels.

    Attributes:
      label_weight, echo_weight, value_weight: of the loss terms.
      shuffle: hand the repairs that labels lead to to other tasks of the turn: the control.
      weights: of the supervised terms.
    """

    echo_weight: float
    label_weight: float = 1.0
    value_weight: float = 0.25
    shuffle: bool = False
    weights: ImitationWeights = ImitationWeights()


def dagger_arm(
    policy: Policy,
    play: Play,
    stream: TaskStream,
    turn_tasks: int,
    rollouts: RolloutOptions,
    credits: CreditOptions,
    options: LabelOptions,
) -> Arm:
    """The arm on tasks of a stream, `turn_tasks` at a time; rewards are for the signals only."""
    explore = make_explore(policy, play, rollouts)

    def collect(params: Params, copied: Params, key: jax.Array) -> tuple[Visits, Metrics]:
        del copied
        tasks, _ = stream.next_batch(turn_tasks)
        roll_key, sample_key, shuffle_key = jax.random.split(key, 3)
        explored = explore(params, tasks, roll_key)
        signals = process_signals(explored, jnp.sum(decision_rewards(explored, credits), axis=0))
        chosen = sample_decisions(explored, sample_key, rollouts.states)
        repairs = to_references(tasks, chosen.action.shape[1])
        if options.shuffle:
            repairs = hand_on(repairs, shuffle_key)
        visits = label_decisions(tasks, chosen, policy.settings, rollouts.teaching, repairs)
        return visits, {**signals, "oracle_labels": jnp.float32(chosen.action.size)}

    return Arm(stream, collect, lambda rows: state_shares(rows.states, options.weights), label_loss(policy, options))


def oracle_path_arm(
    policy: Policy, source: DemonstrationSource, turn_tasks: int, rollouts: RolloutOptions, options: LabelOptions
) -> Arm:
    """Cloning with the sizes of an update arm: as many states of demonstrations as others take from rollouts."""
    samples = rollouts.group * rollouts.states

    def collect(params: Params, copied: Params, key: jax.Array) -> tuple[Visits, Metrics]:
        del params, copied
        demos = source.next_batch(turn_tasks)
        states = oracle_states(demos.tasks, demos.path_keys, key, samples, policy.settings, rollouts.teaching)
        labels = jnp.float32(states.weight.size)
        allowed = policy.rules.allowed(states.valid)
        return Visits(demos.tasks, states, allowed, states.solved), {"oracle_labels": labels}

    return Arm(source, collect, lambda rows: state_shares(rows.states, options.weights), label_loss(policy, options))


def label_loss(policy: Policy, options: LabelOptions) -> Loss:
    """The loss on labelled visits: `(Visits, Shares)`."""

    def loss(params: Params, batch: tuple[Visits, Shares]) -> tuple[jax.Array, Metrics]:
        visits, share = batch
        controller, read = policy.reader(params, visits.tasks)
        readout = read(visits.states.seen)
        terms = imitation_terms(readout, visits.states, share, options.weights, policy.rules)
        echo = echo_terms(controller, readout, visits.states, share)
        value = value_term(readout, visits.won, share)
        total = (
            options.label_weight * terms["loss"]
            + options.echo_weight * echo["echo_loss"]
            + options.value_weight * value
        )
        tokens = policy.count_tokens(visits.tasks, visits.states.weight)
        return total, {**terms, **echo, "value_loss": value, "loss": total, "tokens": tokens}

    return loss


def hand_on(repairs: Repairs, key: jax.Array) -> Repairs:
    """Every task's repairs `[B, S]` handed to another task of the turn."""
    donor = random_cycle(key, jnp.ones(repairs.length.shape[0], bool))
    return jax.tree.map(lambda leaf: leaf[donor], repairs)
