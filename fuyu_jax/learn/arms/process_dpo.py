"""Arm `process_dpo`: preferences between two actions in the states that the policy itself came to.

Each turn: roll out the policy, and pair an edit of the oracle's teacher set with edits of the policy's own that bring
the reference no nearer; in solved states STOP is paired with edits. Then direct preference optimisation of whole
actions against the copied policy (Rafailov et al., arXiv 2305.18290), with the winner's likelihood as a further term:
without it preferred edits lose probability to third ones (Pang et al., arXiv 2404.19733; Razin et al., arXiv
2410.08847). At the start the preference pulls at a winner with `beta / 2` and the likelihood with its weight.

The pairs are what this arm learns from the oracle about edits; STOP is labelled by the verifier, as everywhere.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

import vm
from fuyu_jax.controller.distribution import NEVER, sample_distinct
from fuyu_jax.learn.credit import CreditOptions, decision_rewards
from fuyu_jax.learn.experience import (
    RolloutOptions,
    Visits,
    label_decisions,
    make_explore,
    process_signals,
    sample_decisions,
)
from fuyu_jax.learn.improvement import Arm
from fuyu_jax.learn.losses.preference import dpo_loss, pair_log_probs
from fuyu_jax.learn.losses.reduce import masked_mean, shares, weighted_sum
from fuyu_jax.learn.losses.shuffle import random_half
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
from vm import oracle
from vm.streams import TaskStream

CANDIDATES = 4  # edits drawn for each loser wanted, as some may turn out to help


@dataclass(frozen=True)
class PreferenceOptions:
    """What pairs are made, and the weights of the loss terms.

    Attributes:
      pairs: of each state, at most.
      beta: strength of the hold on the copied policy.
      likelihood_weight: of the winner's likelihood beside the preference.
      policy_weight, echo_weight, value_weight: of the loss terms; the first is of preference and likelihood.
      shuffle: swap winner and loser in half of the pairs: the control.
      weights: of the supervised terms, of which there is none for edits.
    """

    pairs: int
    beta: float
    likelihood_weight: float
    echo_weight: float
    policy_weight: float = 1.0
    value_weight: float = 0.25
    shuffle: bool = False
    weights: ImitationWeights = ImitationWeights(edit=0.0)


class Pairs(NamedTuple):
    """P pairs of actions in each state; leading axes `[..., P]`.

    Attributes:
      winner, loser: int32, flat; -1 where there is no pair.
      counts: bool, there is one.
    """

    winner: jax.Array
    loser: jax.Array
    counts: jax.Array


class Preferred(NamedTuple):
    """Decisions with the pairs made for them, M of each of B tasks.

    Attributes:
      visits: the decisions, labelled by the oracle.
      pairs: `[B, M, P]`.
      reference_winner, reference_loser: float32 `[B, M, P]`, log-probabilities of the copied policy.
    """

    visits: Visits
    pairs: Pairs
    reference_winner: jax.Array
    reference_loser: jax.Array


class PreferenceShares(NamedTuple):
    """What each decision counts in the supervised means, and float32 `[B, M, P]`, each pair in those of the pairs."""

    supervised: Shares
    pairs: jax.Array


def process_dpo_arm(
    policy: Policy,
    play: Play,
    stream: TaskStream,
    turn_tasks: int,
    rollouts: RolloutOptions,
    credits: CreditOptions,
    options: PreferenceOptions,
) -> Arm:
    """The arm on tasks of a stream, `turn_tasks` at a time; rewards are for the signals only."""
    explore, score = make_explore(policy, play, rollouts), make_score(policy)

    def collect(params: Params, copied: Params, key: jax.Array) -> tuple[Preferred, Metrics]:
        tasks, _ = stream.next_batch(turn_tasks)
        roll_key, sample_key, pair_key, swap_key = jax.random.split(key, 4)
        explored = explore(params, tasks, roll_key)
        signals = process_signals(explored, jnp.sum(decision_rewards(explored, credits), axis=0))
        chosen = sample_decisions(explored, sample_key, rollouts.states)
        visits = label_decisions(tasks, chosen, policy.settings, rollouts.teaching)
        now, before = (score(who, tasks, visits.states.seen, visits.allowed) for who in (params, copied))
        pairs = draw_pairs(visits, now, pair_key, options.pairs, policy.settings, rollouts.teaching.placement)
        in_order = pair_log_probs(now, pairs.winner) > pair_log_probs(now, pairs.loser)
        if options.shuffle:
            pairs = swap_half(pairs, swap_key)
        rows = Preferred(visits, pairs, pair_log_probs(before, pairs.winner), pair_log_probs(before, pairs.loser))
        return rows, {
            **signals,
            "pairs": jnp.sum(pairs.counts).astype(jnp.float32),
            "rank_accuracy": masked_mean(in_order.astype(jnp.float32), pairs.counts),
            "oracle_labels": jnp.float32(chosen.action.size),
        }

    def share(rows: Preferred) -> PreferenceShares:
        states = rows.visits.states
        counted = jnp.where(rows.pairs.counts, states.weight[..., None], 0.0)
        return PreferenceShares(state_shares(states, options.weights), shares(counted))

    def loss(params: Params, batch: tuple[Preferred, PreferenceShares]) -> tuple[jax.Array, Metrics]:
        rows, share = batch
        visits = rows.visits
        controller, read = policy.reader(params, visits.tasks)
        readout = read(visits.states.seen)
        terms = pair_terms(policy.log_probs(readout, visits.allowed), rows, share.pairs, options)
        labels = imitation_terms(readout, visits.states, share.supervised, options.weights, policy.rules)
        echo = echo_terms(controller, readout, visits.states, share.supervised)
        value = value_term(readout, visits.won, share.supervised)
        total = (
            options.policy_weight * terms["policy_loss"]
            + labels["loss"]
            + options.echo_weight * echo["echo_loss"]
            + options.value_weight * value
        )
        tokens = policy.count_tokens(visits.tasks, visits.states.weight)
        return total, {**labels, **terms, **echo, "value_loss": value, "loss": total, "tokens": tokens}

    return Arm(stream, collect, share, loss)


@functools.partial(jax.jit, static_argnames=("pairs", "settings", "placement"))
def draw_pairs(
    visits: Visits,
    log_probs: jax.Array,
    key: jax.Array,
    pairs: int,
    settings: vm.Settings,
    placement: oracle.Placement = "first",
) -> Pairs:
    """Pairs of a better and a worse action in the policy's own states.

    A winner is drawn from what the policy itself gives the teacher set, so that the policy keeps its own order among
    equally good edits: the mean gradient of its likelihood is that of the whole set's. Losers are different edits of
    the policy's own. In a solved state STOP wins over any edit.

    Args:
      visits: M labelled decisions of each of B tasks.
      log_probs: float32 `[B, M, N]`, of the policy now.
      key: typed key.
      pairs: static number P.
      settings: static sizes.
      placement: static, as the labels have it.

    Returns:
      `[B, M, P]`; a state has fewer than P where it has fewer losers, and none where it has no winner.
    """
    states, solved = visits.states, visits.states.solved[..., None]
    chex.assert_shape(log_probs, (*states.solved.shape, settings.num_actions))
    winner_key, loser_key = jax.random.split(key)
    good = jnp.concatenate([solved, visits.allowed & states.teacher & ~solved], axis=-1)
    drawn = jax.random.categorical(winner_key, jnp.where(good, log_probs, NEVER), shape=(pairs, *states.solved.shape))
    winner = jnp.moveaxis(drawn, 0, -1).astype(jnp.int32)

    bad = jnp.concatenate([jnp.zeros_like(solved), visits.allowed & (solved | ~states.teacher)], axis=-1)
    candidates = sample_distinct(loser_key, log_probs, bad, CANDIDATES * pairs)  # [B, M, C]
    helps = _distance_after(visits, candidates, settings, placement) < states.distance[..., None]
    fits = (candidates >= 0) & (solved | ~helps)
    first = jnp.argsort(~fits, axis=-1)[..., :pairs]
    loser = jnp.take_along_axis(candidates, first, axis=-1)
    counts = jnp.take_along_axis(fits, first, axis=-1) & jnp.any(good, axis=-1, keepdims=True)
    return Pairs(jnp.where(counts, winner, -1), jnp.where(counts, loser, -1), counts)


def _distance_after(
    visits: Visits, actions: jax.Array, settings: vm.Settings, placement: oracle.Placement
) -> jax.Array:
    """The oracle's distance after each of C actions in a state: int32 `[B, M, C]`.

    The teacher set does not tell: an edit outside it may lower the distance too, by clearing a wrong argument.
    """

    def one(op: jax.Array, arg: jax.Array, action: jax.Array, reference: vm.Program, length: jax.Array) -> jax.Array:
        edited, _ = vm.apply_action(vm.Program(op, arg), action, settings)
        return oracle.distance(edited, reference, settings, placement, length).distance

    each_action = jax.vmap(one, (None, None, 0, None, None))
    each_state = jax.vmap(each_action, (0, 0, 0, None, None))
    seen, tasks = visits.states.seen, visits.tasks
    return jax.vmap(each_state)(seen.op, seen.arg, actions, tasks.reference, tasks.length)


@jax.jit
def swap_half(pairs: Pairs, key: jax.Array) -> Pairs:
    """The pairs with winner and loser swapped in a random half of them."""
    swapped = random_half(key, pairs.counts)
    winner = jnp.where(swapped, pairs.loser, pairs.winner)
    loser = jnp.where(swapped, pairs.winner, pairs.loser)
    return Pairs(winner, loser, pairs.counts)


def pair_terms(log_probs: jax.Array, rows: Preferred, share: jax.Array, options: PreferenceOptions) -> Metrics:
    """The preferences' part of the loss, and what tells whether it is healthy.

    Args:
      log_probs: float32 `[B, M, N]`, of the policy now.
      rows: the pairs.
      share: float32 `[B, M, P]`, what each pair counts.
      options: strength and likelihood.
    """
    winner, loser = (pair_log_probs(log_probs, action) for action in (rows.pairs.winner, rows.pairs.loser))
    said = dpo_loss(
        winner,
        loser,
        rows.reference_winner,
        rows.reference_loser,
        rows.pairs.counts,
        options.beta,
        options.likelihood_weight,
    )
    return {
        "policy_loss": weighted_sum(said.loss, share),
        "margin": weighted_sum(said.margin, share),
        "winner_gain": weighted_sum(said.winner_gain, share),
        "loser_gain": weighted_sum(said.loser_gain, share),
        "rank_accuracy": weighted_sum(said.in_order.astype(jnp.float32), share),
    }
