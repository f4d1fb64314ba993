"""Arm `bc`: behaviour cloning of the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax

from fuyu_jax.learn.demos import Demonstrations, DemonstrationSource
from fuyu_jax.learn.objective import ImitationWeights, echo_terms, imitation_terms
from fuyu_jax.learn.states import States, oracle_states
from fuyu_jax.learn.training import (
    Metrics,
    Params,
    Policy,
    TrainState,
    apply_update,
    make_optimizer,
    start_training,
)

Report = Callable[[int, Metrics], None]  # called after each update with its number, from 1


@dataclass(frozen=True)
class CloningOptions:
    """Sizes and weights of behaviour cloning.

    Attributes:
      updates: optimiser steps in all, divided evenly among `epochs`.
      epochs: parts after each of which the policy is handed out.
      tasks: tasks in an update; states: states of each task's repair in an update.
      learning_rate: peak.
      echo_weight: weight of the ECHO loss.
      weights: of the supervised terms.
    """

    updates: int
    epochs: int
    tasks: int
    states: int
    learning_rate: float
    echo_weight: float
    weights: ImitationWeights = ImitationWeights()


def cloning_states(policy: Policy, demonstrations: Demonstrations, key: jax.Array, options: CloningOptions) -> States:
    """States of an update, from the oracle's repairs that the demonstrations show."""
    return oracle_states(demonstrations.tasks, demonstrations.path_keys, key, options.states, policy.settings)


def cloning_loss(
    policy: Policy,
    params: Params,
    demonstrations: Demonstrations,
    states: States,
    options: CloningOptions,
) -> tuple[jax.Array, Metrics]:
    """The loss on states of the oracle's repairs, and its terms."""
    controller, read = policy.reader(params, demonstrations.tasks)
    readout = read(states.seen)
    terms = imitation_terms(readout, states, options.weights)
    echo, echo_accuracy = echo_terms(controller, readout, states)
    loss = terms["loss"] + options.echo_weight * echo
    tokens = policy.count_tokens(demonstrations.tasks, states.weight)
    return loss, {**terms, "loss": loss, "echo_loss": echo, "echo_accuracy": echo_accuracy, "tokens": tokens}


def clone(
    policy: Policy,
    params: Params,
    source: DemonstrationSource,
    options: CloningOptions,
    key: jax.Array,
    report: Report,
) -> Iterator[Params]:
    """Train on the oracle's repairs and hand out the parameters after each epoch.

    Args:
      policy: the controller's structure and tokens.
      params: where to start.
      source: demonstrations.
      options: sizes and weights.
      key: typed key; decides which states of each repair are shown.
      report: called after each update.
    """
    optimizer = make_optimizer(options.learning_rate, options.updates, warmup=options.updates // 20 + 1)

    @jax.jit
    def clone_update(state: TrainState, demonstrations: Demonstrations, states: States) -> tuple[TrainState, Metrics]:
        return apply_update(
            state, optimizer, lambda params: cloning_loss(policy, params, demonstrations, states, options)
        )

    state = start_training(params, optimizer)
    done = 0
    for epoch in range(1, options.epochs + 1):
        while done < options.updates * epoch // options.epochs:
            demonstrations = source.next_batch(options.tasks)
            states = cloning_states(policy, demonstrations, jax.random.fold_in(key, done), options)
            state, metrics = clone_update(state, demonstrations, states)
            done += 1
            report(done, metrics)
        yield state.params
