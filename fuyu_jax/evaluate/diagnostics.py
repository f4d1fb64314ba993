"""How well each head fits fixed, held-out sets of states, so that phases of training can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import rankdata

from fuyu_jax.controller import Readout, Rules
from fuyu_jax.controller.distribution import NEVER
from fuyu_jax.learn.losses.echo import echo_loss
from fuyu_jax.learn.losses.policy_gradient import exact_kl
from fuyu_jax.learn.losses.reduce import masked_mean
from fuyu_jax.learn.ranking import calibration_error
from fuyu_jax.learn.states import States
from fuyu_jax.learn.training import Metrics
from fuyu_jax.policy import Params, Policy
from vm.tasks import TaskArrays
from vm.types import NUM_OPCODES, Settings


class StateSet(NamedTuple):
    """A fixed set of states `[B, S]` with their tasks; `states.weight` marks filler with 0."""

    tasks: TaskArrays
    states: States


def make_diagnose(policy: Policy) -> Callable[[Params, StateSet], tuple[Metrics, jax.Array]]:
    """A jitted function of parameters and a state set: accuracies, and log-probabilities `[B, S, N]` for the KL."""

    @jax.jit
    def diagnose(params: Params, chosen: StateSet) -> tuple[Metrics, jax.Array]:
        controller, read = policy.reader(params, chosen.tasks)
        states = chosen.states
        readout = read(states.seen)
        _, echo_right = echo_loss(controller.echo(readout, states.action), states.next_outputs, states.next_status)
        took_edit = (states.weight > 0) & (states.action > 0)
        accuracies = {
            **head_accuracies(readout, states, policy.settings, policy.rules),
            "echo_accuracy": masked_mean(echo_right.astype(jnp.float32), took_edit),
        }
        return accuracies, policy.log_probs(readout, policy.rules.allowed(states.valid))

    return diagnose


@jax.jit
def kl_between(log_probs: jax.Array, reference: jax.Array, weight: jax.Array) -> jax.Array:
    """Mean exact KL of two policies over states: `[B, S, N]` each, with weights `[B, S]`, to `[]`."""
    return masked_mean(exact_kl(log_probs, reference), weight)


def head_accuracies(readout: Readout, states: States, settings: Settings, rules: Rules) -> Metrics:
    """Shares of states in which a head is right; of an edit, right means: in the teacher set.

    `kind_accuracy` is of STOP against SET_OP against SET_ARG and `action_accuracy` of the whole action, over all
    states; `slot_accuracy`, `recall_at_1`, `recall_at_16` and `rank_accuracy` are over unsolved states;
    `opcode_accuracy` and `argument_accuracy` over those with a SET_OP or a SET_ARG to make, of the best such edit.
    `rank_accuracy` is the share of (right, wrong) pairs of allowed edits that are in order. `stop_calibration_error` is
    the expected calibration error of P(STOP) (Guo et al. 2017), ten bins of equal width.
    """
    counts = states.weight > 0
    to_do = counts & ~states.solved & jnp.any(states.teacher, axis=-1)
    allowed = rules.allowed(states.valid)
    logits = jnp.where(allowed, readout.edit_logits, NEVER)
    teacher = states.teacher
    best = jnp.argmax(jnp.where(rules.likeliest(readout, allowed, settings), logits, 2 * NEVER), axis=-1)
    pick = lambda mask, index: jnp.take_along_axis(mask, index[..., None], axis=-1)[..., 0]  # noqa: E731
    best_right = pick(teacher, best)

    fields = NUM_OPCODES + settings.args
    place = jnp.arange(logits.shape[-1], dtype=jnp.int32) % fields
    is_op = jnp.broadcast_to(place < NUM_OPCODES, logits.shape)
    by_slot = jnp.any(teacher.reshape(*teacher.shape[:-1], settings.slots, fields), axis=-1)
    stop_prob = jax.nn.sigmoid(rules.stop_logit(readout, allowed))
    says_stop = rules.says_stop(readout, allowed, settings)

    def share(right: jax.Array, mask: jax.Array) -> jax.Array:
        return masked_mean(right.astype(jnp.float32), mask)

    def kind_right(kind: jax.Array) -> tuple[jax.Array, jax.Array]:
        some = to_do & jnp.any(teacher & kind, axis=-1)
        return pick(teacher, jnp.argmax(jnp.where(kind, logits, 2 * NEVER), axis=-1)), some

    wanted_op = jnp.any(teacher & is_op, axis=-1)
    wanted_arg = jnp.any(teacher & ~is_op, axis=-1)
    edit_kind_right = jnp.where(pick(is_op, best), wanted_op, wanted_arg)
    return {
        "kind_accuracy": share(jnp.where(states.solved, says_stop, ~says_stop & edit_kind_right), counts),
        "action_accuracy": share(jnp.where(states.solved, says_stop, ~says_stop & best_right), counts),
        "slot_accuracy": share(pick(by_slot, best // fields), to_do),
        "opcode_accuracy": share(*kind_right(is_op)),
        "argument_accuracy": share(*kind_right(~is_op)),
        "stop_accuracy": share(says_stop == states.solved, counts),
        "recall_at_1": share(best_right, to_do),
        "recall_at_16": share(_recalled(logits, teacher, 16), to_do),
        "rank_accuracy": masked_mean(_pairs_in_order(logits, allowed, teacher), to_do),
        "stop_calibration_error": calibration_error(stop_prob, states.solved, counts),
        "states": jnp.sum(counts),
    }


def _recalled(logits: jax.Array, teacher: jax.Array, k: int) -> jax.Array:
    """Whether a teacher's edit is among the k likeliest: bool `[...]`."""
    top = jax.lax.top_k(logits, k)[1]
    return jnp.any(jnp.take_along_axis(teacher, top, axis=-1), axis=-1)


def _pairs_in_order(logits: jax.Array, allowed: jax.Array, teacher: jax.Array) -> jax.Array:
    """Share of (right, wrong) pairs of allowed edits whose right one is likelier, ties counting half: float32 `[...]`.

    The Mann-Whitney statistic from the ranks of the right edits; others than allowed ones share the lowest ranks.
    """
    rank = rankdata(logits, axis=-1)
    right = jnp.sum(teacher, axis=-1).astype(jnp.float32)
    wrong = jnp.sum(allowed & ~teacher, axis=-1).astype(jnp.float32)
    below = jnp.sum(~allowed, axis=-1).astype(jnp.float32)
    rank_sum = jnp.sum(jnp.where(teacher, rank, 0.0), axis=-1) - right * below
    return (rank_sum - 0.5 * right * (right + 1)) / jnp.maximum(right * wrong, 1.0)
