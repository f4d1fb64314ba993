"""How well a heuristic ranks, against hand-worked numbers and scipy."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fuyu_jax.learn.ranking import area_under_roc, calibration_error, sibling_rank_correlation


def correlation(parent, predicted, true, counts=None):
    counts = np.ones(len(parent), bool) if counts is None else counts
    return [float(x) for x in sibling_rank_correlation(*map(jnp.asarray, (parent, predicted, true, counts)))]


def test_siblings_are_compared_and_nobody_else():
    # Children of 0: true 1, 2, 3 predicted 5, 4, 6: pairs right, right, wrong. Children of 1 lie the other way about.
    assert correlation([0, 0, 0, 1], [5.0, 4.0, 6.0, 0.0], [1, 2, 3, 9]) == pytest.approx([1 / 3, 3])
    assert correlation([0, 1, 2], [3.0, 2.0, 1.0], [1, 2, 3]) == [0, 0]


def test_a_tie_in_what_is_predicted_is_half_right_and_a_true_tie_says_nothing():
    assert correlation([0, 0], [2.0, 2.0], [1, 5]) == [0, 1]
    assert correlation([0, 0], [2.0, 3.0], [4, 4]) == [0, 0]


def test_what_does_not_count_is_left_out():
    assert correlation([0, 0, 0], [1.0, 2.0, 0.0], [1, 2, 3], np.array([True, True, False])) == [1, 1]


def test_with_one_parent_it_is_kendalls_tau():
    draw = np.random.default_rng(1)
    predicted, true = draw.normal(size=40).astype(np.float32), draw.permutation(40)
    expected = stats.kendalltau(predicted, true).statistic
    assert correlation(np.zeros(40, int), predicted, true)[0] == pytest.approx(expected, abs=1e-6)


def test_the_area_is_the_mann_whitney_statistic():
    draw = np.random.default_rng(2)
    score = draw.integers(0, 9, 60).astype(np.float32)  # with ties
    positive, counts = draw.random(60) < 0.4, draw.random(60) < 0.8
    yes, no = score[positive & counts], score[~positive & counts]
    expected = stats.mannwhitneyu(yes, no).statistic / (len(yes) * len(no))
    assert float(area_under_roc(*map(jnp.asarray, (score, positive, counts)))) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("positive", [True, False])
def test_without_two_kinds_the_area_is_that_of_chance(positive):
    assert float(area_under_roc(jnp.arange(3.0), jnp.full(3, positive), jnp.ones(3, bool))) == 0.5


def test_calibration_is_the_gap_in_each_bin_by_its_size():
    # Bin 2: said 0.25 and 0.29, happened once in two: gap 0.46 of a sum. Bin 9: said 0.95, did not happen: 0.95.
    said, came = jnp.array([0.25, 0.29, 0.95, 0.5]), jnp.array([True, False, False, True])
    counts = jnp.array([True, True, True, False])
    assert float(calibration_error(said, came, counts)) == pytest.approx((1 - 0.54 + 0.95) / 3, abs=1e-6)
