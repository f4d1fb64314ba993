"""The loop that all decision updates share: collect a turn of experience, take a few steps on it, and again.

Every arm starts from a copied policy, makes the same number of updates and replays the copied demonstrations beside its
own rows, so that arms differ in what they learn from and in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fuyu_jax.learn.arms.bc import Cloning, Report
from fuyu_jax.learn.demos import TaskSource
from fuyu_jax.learn.training import (
    AtPoint,
    Gradients,
    Loss,
    Metrics,
    TrainingPoint,
    accumulated_gradient,
    add_scaled,
    learning_rates,
    pass_by,
    start_training,
    stop_if_diverged,
    take_step,
)
from fuyu_jax.policy import Params

Rows = Any  # a pytree of arrays [B, ...]: one turn's tasks with what is learnt on them


class Arm(NamedTuple):
    """What makes one decision update different from another.

    Attributes:
      tasks: where `collect` takes its tasks from.
      collect: a turn's rows and process signals, from the policy's parameters, the copied policy's, and a key.
      share: what each of the rows counts in the update that they make up.
      loss: the loss on some rows with their shares `(rows, share)`; a sum over rows, see `accumulated_gradient`.
    """

    tasks: TaskSource
    collect: Callable[[Params, Params, jax.Array], tuple[Rows, Metrics]]
    share: Callable[[Rows], Any]
    loss: Loss


@dataclass(frozen=True)
class UpdateOptions:
    """Sizes of a decision update.

    Attributes:
      updates: optimiser steps in all; rounds: parts after each of which the policy is handed out.
      turn_tasks: tasks of one turn; reuse: passes over a turn's rows.
      batch_tasks: tasks in one update, a divisor of `turn_tasks`.
      learning_rate: peak.
      replay_weight: of the copied demonstrations' loss; with 0 they are not read.
      pieces: parts that an update's gradient is accumulated from.
    """

    updates: int
    rounds: int
    turn_tasks: int
    reuse: int
    batch_tasks: int
    learning_rate: float
    replay_weight: float
    pieces: int = 1

    @property
    def updates_per_turn(self) -> int:
        """Updates made from one turn's rows."""
        return self.reuse * (self.turn_tasks // self.batch_tasks)


def improve(
    arm: Arm,
    params: Params,
    cloning: Cloning,
    options: UpdateOptions,
    key: jax.Array,
    report: Report,
    report_signals: Report,
    begin: TrainingPoint | None = None,
    at_point: AtPoint = pass_by,
) -> Iterator[Params]:
    """Update a copied policy and hand out the parameters after each round.

    To go on from a point, `arm.tasks` and the demonstrations of `cloning` have to be moved to where they were then.

    Args:
      arm: what is learnt.
      params: the copied policy, which also stays the reference of what holds on to it.
      cloning: the cloning that made the policy; its demonstrations are replayed.
      options: sizes.
      key: typed key.
      report: called after each update with its number, from 1.
      report_signals: called after each turn's collection, with the number of updates made before.
      begin: a point of the same improvement to go on from; None begins with the copied policy.
      at_point: called before each turn, and before and after a round's parameters are handed out.

    Raises:
      Diverged: where gradients stop being finite.
    """
    collect_key, replay_key = jax.random.split(key)
    rate = learning_rates(options.learning_rate, options.updates)

    @jax.jit
    def update_gradient(params: Params, turn: Rows, first: jax.Array) -> tuple[Gradients, Metrics]:
        batch = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, options.batch_tasks), turn)
        return accumulated_gradient(arm.loss, params, (batch, arm.share(batch)), options.pieces)

    state, done, rounds_done = begin or TrainingPoint(start_training(params))
    for round_number in range(rounds_done + 1, options.rounds + 1):
        last = options.updates * round_number // options.rounds  # a round begins with experience of its own
        while done < last:
            at_point(TrainingPoint(state, done, round_number - 1))
            turn, signals = arm.collect(state.params, params, jax.random.fold_in(collect_key, done))
            report_signals(done, signals)
            for part in range(min(options.updates_per_turn, last - done)):
                first = part * options.batch_tasks % options.turn_tasks
                gradient, metrics = update_gradient(state.params, turn, jnp.int32(first))
                if options.replay_weight:
                    replayed, replay = cloning.gradient(state.params, jax.random.fold_in(replay_key, done))
                    gradient = add_scaled(gradient, replayed, jnp.float32(options.replay_weight))
                    tokens = metrics["tokens"] + replay["tokens"]
                    metrics = {**metrics, "replay_loss": replay["loss"], "tokens": tokens}
                done += 1
                state, step = take_step(state, gradient, rate(done))
                report(done, {**metrics, **step})
                stop_if_diverged(state, done)
        at_point(TrainingPoint(state, done, round_number - 1))
        yield state.params
    at_point(TrainingPoint(state, done, options.rounds))
