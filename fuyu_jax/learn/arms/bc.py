"""Arm `bc`: behaviour cloning of the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax

from fuyu_jax.learn.demos import DemonstrationSource
from fuyu_jax.learn.objective import ImitationWeights, Shares, echo_terms, imitation_terms, state_shares
from fuyu_jax.learn.states import States, Teaching, oracle_states
from fuyu_jax.learn.training import (
    AtPoint,
    Gradients,
    Metrics,
    TrainingPoint,
    accumulated_gradient,
    learning_rates,
    pass_by,
    start_training,
    stop_if_diverged,
    take_step,
)
from fuyu_jax.policy import Params, Policy
from vm.tasks import TaskArrays

Report = Callable[[int, Metrics], None]  # called after each update with its number, from 1


@dataclass(frozen=True)
class CloningOptions:
    """Sizes and weights of behaviour cloning.

    Attributes:
      updates: optimiser steps in all, divided evenly among `epochs`.
      epochs: parts after each of which the policy is handed out.
      tasks: tasks in an update.
      states: states of each task's repair in an update.
      learning_rate: peak.
      echo_weight: weight of the ECHO loss.
      pieces: parts that an update's gradient is accumulated from.
      teaching: how the oracle teaches.
      weights: of the supervised terms.
    """

    updates: int
    epochs: int
    tasks: int
    states: int
    learning_rate: float
    echo_weight: float
    pieces: int = 1
    teaching: Teaching = Teaching()
    weights: ImitationWeights = ImitationWeights()


class Cloning:
    """The gradient of the cloning loss on the next demonstrations; arms that replay them share its compilation."""

    def __init__(self, policy: Policy, source: DemonstrationSource, options: CloningOptions) -> None:
        """Demonstrations come from `source`, in order."""
        self.options = options
        self._policy, self._source = policy, source

        @jax.jit
        def clone_gradient(params: Params, tasks: TaskArrays, states: States) -> tuple[Gradients, Metrics]:
            batch = (tasks, states, state_shares(states, options.weights))
            return accumulated_gradient(self._loss, params, batch, options.pieces)

        self._gradient = clone_gradient

    def gradient(self, params: Params, key: jax.Array) -> tuple[Gradients, Metrics]:
        """Gradient and loss terms on the next demonstrations; the key decides which states of each repair are shown."""
        demonstrations = self._source.next_batch(self.options.tasks)
        states = oracle_states(
            demonstrations.tasks,
            demonstrations.path_keys,
            key,
            self.options.states,
            self._policy.settings,
            self.options.teaching,
        )
        return self._gradient(params, demonstrations.tasks, states)

    def _loss(self, params: Params, batch: tuple[TaskArrays, States, Shares]) -> tuple[jax.Array, Metrics]:
        tasks, states, share = batch
        controller, read = self._policy.reader(params, tasks)
        readout = read(states.seen)
        terms = imitation_terms(readout, states, share, self.options.weights, self._policy.rules)
        echo = echo_terms(controller, readout, states, share)
        loss = terms["loss"] + self.options.echo_weight * echo["echo_loss"]
        return loss, {**terms, **echo, "loss": loss, "tokens": self._policy.count_tokens(tasks, states.weight)}


def clone(
    cloning: Cloning,
    params: Params,
    key: jax.Array,
    report: Report,
    begin: TrainingPoint | None = None,
    at_point: AtPoint = pass_by,
) -> Iterator[Params]:
    """Train on the oracle's repairs and hand out the parameters after each epoch.

    To go on from a point, the demonstrations have to be moved to where they were then.

    Args:
      cloning: demonstrations, sizes and weights.
      params: where to start.
      key: typed key.
      report: called after each update.
      begin: a point of the same cloning to go on from; None begins with `params`.
      at_point: called before each update, and before and after an epoch's parameters are handed out.

    Raises:
      Diverged: where gradients stop being finite.
    """
    options = cloning.options
    rate = learning_rates(options.learning_rate, options.updates)
    state, done, epochs_done = begin or TrainingPoint(start_training(params))
    for epoch in range(epochs_done + 1, options.epochs + 1):
        while done < options.updates * epoch // options.epochs:
            at_point(TrainingPoint(state, done, epoch - 1))
            gradient, metrics = cloning.gradient(state.params, jax.random.fold_in(key, done))
            done += 1
            state, step = take_step(state, gradient, rate(done))
            report(done, {**metrics, **step})
            stop_if_diverged(state, done)
        at_point(TrainingPoint(state, done, epoch - 1))
        yield state.params
    at_point(TrainingPoint(state, done, options.epochs))
