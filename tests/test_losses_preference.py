"""Preference losses against hand-worked numbers, plain Python and finite differences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fuyu_jax.controller.distribution import NEVER, action_log_probs, masked_log_softmax
from fuyu_jax.learn.losses.preference import best_rank, dpo_loss, listwise_loss, pair_log_probs
from fuyu_jax.learn.losses.reduce import masked_mean

PAIR = (-10.0, -12.0, -11.0, -11.5)  # policy's winner and loser, reference's winner and loser


def dpo(pair, **options):
    arrays = [jnp.atleast_1d(jnp.asarray(numbers, jnp.float32)) for numbers in pair]
    return dpo_loss(*arrays, jnp.ones(arrays[0].shape, bool), **options)


def test_dpo_by_hand():
    """The margin is 0.1 * ((-10 + 11) - (-12 + 11.5)) = 0.15."""
    said = dpo(PAIR)
    assert float(said.margin[0]) == pytest.approx(0.15, rel=1e-5)
    assert float(said.loss[0]) == pytest.approx(0.620957, abs=1e-6)
    assert float(said.winner_gain[0]) == 1.0
    assert float(said.loser_gain[0]) == -0.5
    assert bool(said.in_order[0])


def test_swapped_sides_cost_more():
    winner, loser, reference_winner, reference_loser = PAIR
    said = dpo((loser, winner, reference_loser, reference_winner))
    assert float(said.loss[0]) == pytest.approx(0.770957, abs=1e-6)
    assert not said.in_order[0]


def test_answers_are_summed_not_averaged():
    """Ten parts against four. Means would cost 0.681960, so the loss must not divide by a length of its own."""
    winner, loser, reference_winner, reference_loser = PAIR
    means = (winner / 10, loser / 4, reference_winner / 10, reference_loser / 4)
    assert float(dpo(means).loss[0]) == pytest.approx(0.681960, abs=1e-6)
    together = dpo([[sums, mean] for sums, mean in zip(PAIR, means, strict=True)])
    np.testing.assert_allclose(together.loss, [0.620957, 0.681960], atol=1e-6)


def test_at_the_start_the_loss_is_log_two_and_margins_are_exactly_zero():
    logits = 3 * jax.random.normal(jax.random.key(0), (50, 9))
    allowed = jax.random.bernoulli(jax.random.key(1), 0.7, logits.shape).at[:, :2].set(True)
    log_probs = action_log_probs(logits[:, 0], logits, allowed)
    winner = pair_log_probs(log_probs, jnp.ones((50, 4), jnp.int32))
    loser = pair_log_probs(log_probs, jnp.tile(jnp.array([[0, 2, 2, 0]]), (50, 1)))
    for options in ({}, {"beta": 0.5, "positive_weight": 50.0}):
        said = dpo_loss(winner, loser, winner, loser, jnp.ones((50, 4), bool), **options)
        np.testing.assert_array_equal(said.margin, np.zeros((50, 4)))
        np.testing.assert_allclose(said.loss, np.full((50, 4), 0.693147), atol=1e-6)


def test_likelihood_term_is_added_for_the_winner():
    assert float(dpo(PAIR, likelihood_weight=0.5).loss[0]) == pytest.approx(0.620957 + 5.0, abs=1e-5)


def test_positive_penalty_bites_only_below_the_reference():
    """Winner 1 nat up: no penalty. Winner and loser both 2 nats down: margin 0, but 0.1 * 5 * 2 = 1 inside."""
    assert float(dpo(PAIR, positive_weight=5.0).loss[0]) == pytest.approx(0.620957, abs=1e-6)
    fallen = (-5.0, -6.0, -3.0, -4.0)
    assert float(dpo(fallen).loss[0]) == pytest.approx(math.log(2), rel=1e-6)
    said = dpo(fallen, positive_weight=5.0)
    assert float(said.loss[0]) == pytest.approx(math.log(1 + math.e), rel=1e-5)
    assert float(said.margin[0]) == 0.0


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-20, 0, width=32), min_size=4, max_size=4), st.floats(0, 2), st.floats(0, 10))
def test_dpo_equals_the_formula(pair, alpha, penalty):
    winner, loser, reference_winner, reference_loser = pair
    inside = 0.3 * (winner - reference_winner - loser + reference_loser - penalty * max(0.0, reference_winner - winner))
    expected = np.logaddexp(0.0, -inside) - alpha * winner
    said = dpo(pair, beta=0.3, likelihood_weight=alpha, positive_weight=penalty)
    assert float(said.loss[0]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_no_gradient_into_the_reference_and_the_right_one_into_the_policy():
    """d loss / d winner = -beta * sigmoid(-margin), and the opposite for the loser."""
    arrays = [jnp.float32(number) for number in PAIR]
    slopes = jax.grad(lambda *pair: dpo_loss(*pair, jnp.asarray(True)).loss, argnums=(0, 1, 2, 3))(*arrays)
    slope = 0.1 / (1 + math.exp(0.15))
    np.testing.assert_allclose(slopes, [-slope, slope, 0, 0], rtol=1e-5)


def test_pairs_that_do_not_count_are_silent_whatever_they_hold():
    """A row without a pair is NaN, or was never allowed; neither reaches the mean or the gradient."""

    def mean(winner):
        counts = jnp.array([True, False, False])
        said = dpo_loss(
            winner,
            jnp.array([-12.0, jnp.nan, NEVER]),
            jnp.array([-11.0, jnp.nan, NEVER]),
            jnp.array([-11.5, jnp.inf, NEVER]),
            counts,
            likelihood_weight=1.0,
            positive_weight=5.0,
        )
        assert not said.in_order[1:].any()
        return masked_mean(said.loss, counts), said

    winner = jnp.array([-10.0, jnp.nan, NEVER])
    (loss, said), slope = jax.value_and_grad(mean, has_aux=True)(winner)
    assert float(loss) == pytest.approx(10.620957, abs=1e-5)
    for part in (said.loss, said.margin, said.winner_gain, said.loser_gain):
        np.testing.assert_array_equal(part[1:], [0, 0])
    assert np.isfinite(slope).all() and slope[0] < -1.0
    np.testing.assert_array_equal(slope[1:], [0, 0])


def test_no_action_reads_no_action():
    """A label of -1 would wrap around to the last action, which is the likeliest here."""
    log_probs = jnp.log(jnp.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]))
    picked, pull = jax.vjp(lambda x: pair_log_probs(x, jnp.array([[1, -1], [-1, 0]])), log_probs)
    np.testing.assert_allclose(picked, [[math.log(0.2), 0], [0, math.log(0.5)]], rtol=1e-6)
    np.testing.assert_array_equal(pull(jnp.ones((2, 2)))[0], [[0, 1, 0], [1, 0, 0]])


def test_dpo_gradient_against_finite_differences():
    reference = action_log_probs(jnp.float32(0.2), jnp.zeros(4), jnp.ones(4, bool))
    allowed = jnp.array([True, True, False, True])

    def objective(stop, logits):
        log_probs = action_log_probs(stop, logits, allowed)
        winner, loser = jnp.array([1, 2]), jnp.array([4, 0])
        picked = [pair_log_probs(of, action) for of in (log_probs, reference) for action in (winner, loser)]
        said = dpo_loss(*picked, jnp.array([True, False]), 0.5, likelihood_weight=0.3, positive_weight=2.0)
        return jnp.sum(said.loss)

    check_grads(objective, (jnp.float32(-0.3), jnp.array([0.1, -0.5, 1.0, 0.4])), 1, ["rev"], atol=1e-2, rtol=1e-2)


def test_listwise_by_hand():
    """Targets 1/2, 1/4, 1/4 against 1/4, 1/4, 1/2 cost a quarter of log 2; a fourth candidate is none."""
    target = jnp.log(jnp.array([0.5, 0.25, 0.25])).tolist()
    scores = jnp.array([0.0, 0.0, math.log(2), jnp.nan])
    candidates = jnp.array([True, True, True, False])
    loss, slope = jax.value_and_grad(listwise_loss)(scores, jnp.array([*target, NEVER]), candidates)
    assert float(loss) == pytest.approx(0.25 * math.log(2), rel=1e-5)
    np.testing.assert_allclose(slope, [0.25 - 0.5, 0.0, 0.5 - 0.25, 0.0], atol=1e-6)  # softmax less target


def test_listwise_temperature_and_costs():
    """Costs 0 and 1 at temperature 1/2 are two nats apart, and so are scores 4 and 2 at temperature 1."""
    candidates = jnp.ones(2, bool)
    target = masked_log_softmax(-jnp.array([0.0, 1.0]) / 0.5, candidates)
    assert float(listwise_loss(jnp.array([4.0, 2.0]), target, candidates)) == pytest.approx(0.0, abs=1e-6)
    assert float(listwise_loss(jnp.array([8.0, 4.0]), target, candidates, 2.0)) == pytest.approx(0.0, abs=1e-6)
    assert float(listwise_loss(jnp.array([8.0, 4.0]), target, candidates)) > 0.01


def test_listwise_without_candidates_is_zero_with_a_zero_gradient():
    none = jnp.zeros(3, bool)
    loss, slope = jax.value_and_grad(listwise_loss)(jnp.array([1.0, jnp.nan, 2.0]), jnp.full(3, NEVER), none)
    assert float(loss) == 0.0
    np.testing.assert_array_equal(slope, np.zeros(3))


def test_listwise_gradient_against_finite_differences():
    candidates = jnp.array([[1, 1, 1, 1], [1, 0, 1, 1]], bool)
    target = masked_log_softmax(jax.random.normal(jax.random.key(1), (2, 4)), candidates)
    scores = jax.random.normal(jax.random.key(0), (2, 4))
    check_grads(
        lambda x: jnp.sum(listwise_loss(x, target, candidates, 0.7)), (scores,), 1, ["rev"], atol=1e-2, rtol=1e-2
    )


@pytest.mark.parametrize(
    ("scores", "good", "candidates", "rank"),
    [
        ([3, 2, 1], [1, 0, 0], [1, 1, 1], 1),
        ([3, 2, 1], [0, 0, 1], [1, 1, 1], 3),
        ([3, 2, 1], [0, 0, 1], [0, 1, 1], 2),
        ([2, 2, 2], [0, 1, 0], [1, 1, 1], 3),  # a policy that can't tell them apart gets no credit
        ([2, 2, 2], [1, 1, 1], [1, 1, 1], 1),
        ([3, 2, 1], [0, 0, 0], [1, 1, 1], 4),
        ([3, 2, 1], [1, 0, 0], [0, 1, 1], 4),  # good, but no candidate
    ],
)
def test_best_rank(scores, good, candidates, rank):
    arrays = (jnp.array(scores, jnp.float32), jnp.array(good, bool), jnp.array(candidates, bool))
    assert int(best_rank(*arrays)) == rank
