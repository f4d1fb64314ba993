"""The supervised terms that every arm shares, from one forward pass."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fuyu_jax.controller import Controller, Readout
from fuyu_jax.learn.losses.echo import echo_loss
from fuyu_jax.learn.losses.imitation import balanced_stop_loss, distance_loss, teacher_set_loss
from fuyu_jax.learn.losses.reduce import masked_mean
from fuyu_jax.learn.states import States


class ImitationWeights(NamedTuple):
    """Weights of the supervised terms, and how far the two classes of STOP are balanced (0 to 1)."""

    edit: float = 1.0
    stop: float = 0.5
    distance: float = 0.25
    stop_balance: float = 0.5


def imitation_terms(readout: Readout, states: States, weights: ImitationWeights) -> dict[str, jax.Array]:
    """Losses against the labels of states `[B, S]`: `edit_loss`, `stop_loss`, `distance_loss` and their sum, `loss`.

    States that are solved have no edit to imitate, whether or not they are the reference.
    """
    counts = states.weight > 0
    to_edit = jnp.where(states.solved, 0.0, states.weight)
    edit = masked_mean(teacher_set_loss(readout.edit_logits, states.valid, states.teacher), to_edit)
    stop = balanced_stop_loss(readout.stop_logit, states.solved, counts, weights.stop_balance)
    distance = masked_mean(distance_loss(readout.distance_logits, states.distance), states.weight)
    total = weights.edit * edit + weights.stop * stop + weights.distance * distance
    return {"loss": total, "edit_loss": edit, "stop_loss": stop, "distance_loss": distance}


def echo_terms(
    controller: Controller, readout: Readout, states: States, per_task: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Mean ECHO loss and accuracy over the first `per_task` states of each task that took an edit.

    The byte logits of one state are as large as its whole transformer pass, so a share of the states serves.
    """
    first = jax.tree.map(lambda leaf: leaf[:, :per_task], (readout, states))
    some_readout, some = first
    loss, right = echo_loss(controller.echo(some_readout, some.action), some.next_outputs, some.next_status)
    took_edit = (some.weight > 0) & (some.action > 0)
    return masked_mean(loss, took_edit), masked_mean(right.astype(jnp.float32), took_edit)
