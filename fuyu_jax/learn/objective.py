"""The supervised terms that every arm shares, from one forward pass.

Every term is a sum over states with shares that were settled for the whole update, so that an update may be worked off
in parts (`accumulated_gradient`) and still be the same update.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fuyu_jax.controller import Controller, Readout, Rules
from fuyu_jax.learn.losses.echo import echo_loss
from fuyu_jax.learn.losses.imitation import decision_loss, distance_loss, stop_weights, teacher_set_loss
from fuyu_jax.learn.losses.reduce import shares, weighted_sum
from fuyu_jax.learn.states import States
from fuyu_jax.learn.training import Metrics

ECHO_STATES = 1  # of each task: the byte logits of one state are as large as its whole transformer pass


class ImitationWeights(NamedTuple):
    """Weights of the supervised terms, and those within STOP's, see `stop_weights`.

    Balanced classes draw P(STOP) up wherever solved states are the rarer ones, so they are left as they come; and a
    false STOP loses the task where one more edit rarely does, so it weighs three times as much.
    """

    edit: float = 1.0
    stop: float = 1.0
    distance: float = 0.25
    stop_balance: float = 0.0
    stop_caution: float = 3.0


class Shares(NamedTuple):
    """What each state counts in each mean over an update; every field sums to 1, or is all 0 where nothing counts.

    Attributes:
      all: float32 `[B, S]`, by the states' weights.
      edit: float32 `[B, S]`, those with an edit to imitate: solved states have none, be they the reference or not.
      stop: float32 `[B, S]`, by `stop_weights`.
      distance: float32 `[B, S]`, those to which a repair is known.
      echo: float32 `[B, ECHO_STATES]`, of the first states of each task, those that took an edit.
    """

    all: jax.Array
    edit: jax.Array
    stop: jax.Array
    distance: jax.Array
    echo: jax.Array


def state_shares(states: States, weights: ImitationWeights) -> Shares:
    """The shares of an update's states `[B, S]`."""
    counts = states.weight > 0
    took_edit = (counts & (states.action > 0))[:, :ECHO_STATES]
    return Shares(
        all=shares(states.weight),
        edit=shares(jnp.where(states.taught & ~states.solved, states.weight, 0.0)),
        stop=shares(stop_weights(states.solved, counts, weights.stop_balance, weights.stop_caution)),
        distance=shares(jnp.where(states.taught, states.weight, 0.0)),
        echo=shares(took_edit),
    )


def imitation_terms(
    readout: Readout, states: States, share: Shares, weights: ImitationWeights, rules: Rules
) -> Metrics:
    """Losses against the labels of states `[B, S]`: `edit_loss`, `stop_loss`, `distance_loss` and their sum, `loss`.

    A joint STOP is learnt with the edits in one cross-entropy, which is then summed unless edits weigh nothing.
    `edit_loss`, given that the policy goes on, and `stop_loss`, of P(STOP), are what they are with a STOP of its own.
    """
    allowed = rules.allowed(states.valid)
    edit = weighted_sum(teacher_set_loss(readout.edit_logits, allowed, states.teacher), share.edit)
    solved = states.solved.astype(jnp.float32)
    stop = weighted_sum(optax.sigmoid_binary_cross_entropy(rules.stop_logit(readout, allowed), solved), share.stop)
    distance = weighted_sum(distance_loss(readout.distance_logits, states.distance), share.distance)
    if rules.joint_stop and weights.edit:
        decision = decision_loss(rules.log_probs(readout, allowed), states.teacher, states.solved)
        decided = weights.edit * weighted_sum(decision, share.all)
    else:
        decided = weights.edit * edit + weights.stop * stop
    total = decided + weights.distance * distance
    return {"loss": total, "edit_loss": edit, "stop_loss": stop, "distance_loss": distance}


def value_term(readout: Readout, won: jax.Array, share: Shares) -> jax.Array:
    """Mean cross-entropy of whether the policy's own rollouts ended solved, bool `[B, S]`."""
    losses = optax.sigmoid_binary_cross_entropy(readout.value_logit, won.astype(jnp.float32))
    return weighted_sum(losses, share.all)


def echo_terms(controller: Controller, readout: Readout, states: States, share: Shares) -> Metrics:
    """Mean `echo_loss` and `echo_accuracy` over the first states of each task that took an edit."""
    some_readout, some = jax.tree.map(lambda leaf: leaf[:, :ECHO_STATES], (readout, states))
    loss, right = echo_loss(controller.echo(some_readout, some.action), some.next_outputs, some.next_status)
    return {
        "echo_loss": weighted_sum(loss, share.echo),
        "echo_accuracy": weighted_sum(right.astype(jnp.float32), share.echo),
    }
