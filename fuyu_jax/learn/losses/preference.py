"""Preferences among the actions of a state: pairs with a reference policy (DPO), and whole lists of candidates."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fuyu_jax.controller.distribution import NEVER, masked_log_softmax
from fuyu_jax.learn.losses.policy_gradient import exact_kl


class Preference(NamedTuple):
    """What became of pairs `[...]`; everything is 0 or false where a pair does not count.

    Attributes:
      loss: float32, in nats.
      margin: float32, the winner's implicit reward less the loser's, `beta` times the difference of the gains.
      winner_gain, loser_gain: float32, log-probability less the reference's. A falling winner means that the mass went
        to a third action (arXiv 2410.08847).
      in_order: bool, the winner is likelier than the loser.
    """

    loss: jax.Array
    margin: jax.Array
    winner_gain: jax.Array
    loser_gain: jax.Array
    in_order: jax.Array


def pair_log_probs(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    """Log-probabilities of P actions a state: float32 `[..., N]` and int32 `[..., P]` to `[..., P]`.

    Negative actions, which stand for none, give 0: an index of -1 would silently read the last action.
    """
    chex.assert_equal_shape_prefix([log_probs, action], action.ndim - 1)
    picked = jnp.take_along_axis(log_probs, jnp.maximum(action, 0), axis=-1)
    return jnp.where(action >= 0, picked, 0.0)


def dpo_loss(
    winner: jax.Array,
    loser: jax.Array,
    reference_winner: jax.Array,
    reference_loser: jax.Array,
    counts: jax.Array,
    beta: float = 0.1,
    likelihood_weight: float = 0.0,
    positive_weight: float = 0.0,
) -> Preference:
    """Direct preference optimisation (arXiv 2305.18290, eq. 7) with the two known cures of a falling winner.

    All log-probabilities are of whole answers: summed over their parts, never averaged. No gradient flows into the
    reference.

    Args:
      winner: float32 `[...]`, the policy's log-probability of the better answer.
      loser: float32 `[...]`, of the worse one.
      reference_winner: float32 `[...]`, the reference's log-probability of the better answer.
      reference_loser: float32 `[...]`, of the worse one.
      counts: bool `[...]`, whether there is such a pair. Others may hold anything, NaN included.
      beta: strength of the hold on the reference.
      likelihood_weight: of the winner's negative log-likelihood (alpha of iterative RPO, arXiv 2404.19733).
      positive_weight: of the winner's fall below the reference, inside the sigmoid (lambda of DPO-Positive,
        arXiv 2402.13228).
    """
    chex.assert_equal_shape([winner, loser, reference_winner, reference_loser, counts])
    clean = lambda values: jnp.where(counts, values, 0.0)  # noqa: E731
    winner_gain = clean(winner) - jax.lax.stop_gradient(clean(reference_winner))
    loser_gain = clean(loser) - jax.lax.stop_gradient(clean(reference_loser))
    margin = beta * (winner_gain - loser_gain)
    fall = jax.nn.relu(-winner_gain)  # its slope at the start, where nothing fell yet, is 0
    loss = jax.nn.softplus(beta * positive_weight * fall - margin) - likelihood_weight * clean(winner)
    return Preference(clean(loss), margin, winner_gain, loser_gain, clean(winner) > clean(loser))


def listwise_loss(
    scores: jax.Array, target_log_probs: jax.Array, candidates: jax.Array, temperature: float = 1.0
) -> jax.Array:
    """KL(target || softmax(scores / temperature)) over all candidates of a state: listwise preference.

    Args:
      scores: float32 `[..., N]`; may hold anything outside the candidates.
      target_log_probs: float32 `[..., N]`, for instance `masked_log_softmax(-cost / tau, candidates)`; `NEVER` outside
        the candidates.
      candidates: bool `[..., N]`; a state without any has loss 0.
      temperature: of the scores.

    Returns:
      float32 `[...]`, in nats.
    """
    chex.assert_equal_shape([scores, target_log_probs, candidates])
    log_probs = masked_log_softmax(jnp.where(candidates, scores, 0.0) / temperature, candidates)
    return exact_kl(jax.lax.stop_gradient(target_log_probs), log_probs)


def best_rank(scores: jax.Array, good: jax.Array, candidates: jax.Array) -> jax.Array:
    """Place of the best-scored good candidate, from 1; bad candidates of the same score come before it.

    Recall at k is the share of states with a rank of at most k, and the mean of 1 / rank is the mean reciprocal rank.

    Args:
      scores: float32 `[..., N]`.
      good: bool `[..., N]`, among the candidates.
      candidates: bool `[..., N]`.

    Returns:
      int32 `[...]`; N + 1 where no candidate is good.
    """
    chex.assert_equal_shape([scores, good, candidates])
    good = good & candidates
    best = jnp.max(jnp.where(good, scores, 2 * NEVER), axis=-1, keepdims=True)
    ahead = jnp.sum(candidates & ~good & (scores >= best), axis=-1, dtype=jnp.int32)
    return jnp.where(jnp.any(good, axis=-1), ahead + 1, scores.shape[-1] + 1)
