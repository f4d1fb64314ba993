"""Imitation and ECHO losses against hand-worked numbers and finite differences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads

from fuyu_jax.controller.distribution import NEVER, action_log_probs, choose_edit, masked_log_softmax
from fuyu_jax.controller.heads import Echo
from fuyu_jax.learn.losses.echo import echo_loss, word_bytes
from fuyu_jax.learn.losses.imitation import distance_loss, stop_weights, teacher_set_loss
from fuyu_jax.learn.losses.reduce import masked_mean, shares, weighted_sum
from vm import Value


def balanced_stop_loss(logits, solved, mask, balance):
    losses = optax.sigmoid_binary_cross_entropy(logits, solved.astype(jnp.float32))
    return masked_mean(losses, stop_weights(solved, mask, balance, 1.0))


def test_masked_mean_ignores_what_is_masked():
    values = jnp.array([1.0, 1.0, jnp.nan, jnp.inf])
    mask = jnp.array([True, True, False, False])
    mean, gradient = jax.value_and_grad(masked_mean)(values, mask)
    assert mean == 1.0  # not 0.5: the denominator counts what the numerator does
    np.testing.assert_array_equal(gradient, [0.5, 0.5, 0, 0])


def test_masked_mean_of_nothing_is_zero():
    mean, gradient = jax.value_and_grad(masked_mean)(jnp.array([jnp.nan, 3.0]), jnp.zeros(2, bool))
    assert mean == 0.0
    np.testing.assert_array_equal(gradient, [0, 0])


def test_masked_mean_weighs():
    assert float(masked_mean(jnp.array([1.0, 4.0]), jnp.array([3.0, 1.0]))) == pytest.approx(7 / 4)


def test_a_mean_adds_up_from_uneven_parts():
    values, mask = jnp.array([1.0, 2.0, 6.0, 7.0]), jnp.array([True, True, True, False])
    share = shares(mask)
    parts = [weighted_sum(values[part], share[part]) for part in (slice(0, 1), slice(1, 4))]
    assert float(sum(parts)) == pytest.approx(3.0)  # the mean of the parts' means would be 2.5


@pytest.mark.parametrize(
    ("allowed", "teacher", "expected"),
    [
        ([1, 1, 1, 1], [1, 0, 0, 0], math.log(4)),
        ([1, 1, 1, 1], [1, 1, 0, 0], math.log(2)),  # the mass may be divided in any way
        ([1, 1, 1, 0], [0, 1, 0, 0], math.log(3)),
        ([1, 0, 0, 0], [1, 0, 0, 0], 0.0),
        ([1, 1, 1, 1], [0, 0, 0, 0], 0.0),  # nothing to teach
    ],
)
def test_teacher_set_loss_of_even_logits(allowed, teacher, expected):
    loss = teacher_set_loss(jnp.zeros(4), jnp.array(allowed, bool), jnp.array(teacher, bool))
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_teacher_set_loss_does_not_care_how_the_mass_is_divided():
    teacher, allowed = jnp.array([1, 1, 0], bool), jnp.ones(3, bool)
    even = teacher_set_loss(jnp.log(jnp.array([0.3, 0.3, 0.4])), allowed, teacher)
    uneven = teacher_set_loss(jnp.log(jnp.array([0.55, 0.05, 0.4])), allowed, teacher)
    assert float(even) == pytest.approx(-math.log(0.6), abs=1e-6)
    assert float(uneven) == pytest.approx(-math.log(0.6), abs=1e-6)


def test_gradient_is_finite_where_nothing_is_allowed():
    allowed = teacher = jnp.zeros(3, bool)
    gradient = jax.grad(lambda x: teacher_set_loss(x, allowed, teacher) + action_log_probs(x[0], x, allowed)[0])(
        jnp.array([1.0, 2.0, 3.0])
    )
    assert np.isfinite(gradient).all()


def test_stop_loss_by_hand():
    """P = 3/4 for a solved state and 1/4 for three unsolved ones: every state costs -log(3/4)."""
    logit = math.log(3)
    logits = jnp.array([logit, -logit, -logit, logit])
    solved = jnp.array([True, False, False, False])
    counts = jnp.ones(4, bool)
    good, bad = -math.log(0.75), -math.log(0.25)
    plain = (3 * good + bad) / 4
    balanced = (3 * good + 2 * good + bad) / 6  # the solved state counts three times
    assert float(balanced_stop_loss(logits, solved, counts, 0.0)) == pytest.approx(plain, rel=1e-6)
    assert float(balanced_stop_loss(logits, solved, counts, 1.0)) == pytest.approx(balanced, rel=1e-6)


def test_stop_loss_of_one_class_or_nothing_is_finite():
    logits = jnp.array([0.0, 0.0])
    for solved in ([True, True], [False, False]):
        assert float(balanced_stop_loss(logits, jnp.array(solved), jnp.ones(2, bool), 1.0)) == pytest.approx(
            math.log(2), rel=1e-6
        )
    assert float(balanced_stop_loss(logits, jnp.array([True, False]), jnp.zeros(2, bool), 1.0)) == 0.0


def test_distance_loss_puts_all_that_is_far_in_the_last_class():
    logits = jnp.zeros((3, 18)).at[:, 17].set(math.log(3))
    losses = distance_loss(logits, jnp.array([17, 40, 0]))
    np.testing.assert_allclose(losses, [math.log(20 / 3), math.log(20 / 3), math.log(20)], rtol=1e-6)


def test_word_bytes_by_hand():
    words = jnp.array([0, 1, -1, 258, -(2**31)])
    expected = [[0, 0, 0, 0], [1, 0, 0, 0], [255] * 4, [2, 1, 0, 0], [0, 0, 0, 128]]
    np.testing.assert_array_equal(word_bytes(words), expected)


def _even_echo(examples, width):
    return Echo(
        jnp.zeros((examples, 8)), jnp.zeros((examples, 4)), jnp.zeros((examples, width + 1)),
        jnp.zeros((examples, width, 4, 256)),
    )  # fmt: skip


def test_echo_loss_of_even_logits():
    outputs = Value(jnp.array([1, 3]), jnp.array([1, 2]), jnp.array([[7, 0, 0], [-5, 2, 0]]))
    loss, right = echo_loss(_even_echo(2, 3), outputs, jnp.array([0, 0]))
    assert float(loss) == pytest.approx(math.log(8) + math.log(4) + math.log(4) + 4 * math.log(256), rel=1e-6)
    assert not right


def test_echo_is_right_only_when_every_part_is():
    outputs = Value(jnp.array([1, 3]), jnp.array([1, 2]), jnp.array([[7, 0, 0], [-5, 2, 0]]))
    status = jnp.array([0, 2])
    sure = Echo(
        9.0 * jax.nn.one_hot(status, 8), 9.0 * jax.nn.one_hot(outputs.type, 4), 9.0 * jax.nn.one_hot(outputs.length, 4),
        9.0 * jax.nn.one_hot(word_bytes(outputs.words), 256),
    )  # fmt: skip
    assert echo_loss(sure, outputs, status)[1]
    off_by_a_byte = outputs._replace(words=outputs.words.at[1, 0].set(-5 ^ (1 << 24)))
    assert not echo_loss(sure, off_by_a_byte, status)[1]
    assert not echo_loss(sure, outputs, status.at[0].set(1))[1]


@pytest.mark.parametrize(("balance", "caution", "wanted"), [(0.0, 1.0, 1 / 4), (1.0, 1.0, 1 / 2), (0.0, 3.0, 1 / 10)])
def test_the_probability_of_stop_that_costs_least(balance, caution, wanted):
    """One of four states is solved and nothing tells them apart: the loss is least at p r / (p r + caution (1 - p))."""
    solved = jnp.array([True, False, False, False])
    weights = stop_weights(solved, jnp.ones(4, bool), balance, caution)
    probability = np.linspace(0.01, 0.99, 99)
    losses = -np.log(np.where(solved, probability[:, None], 1 - probability[:, None]))
    assert probability[(losses * np.asarray(weights)).sum(axis=1).argmin()] == pytest.approx(wanted)


def test_imitation_gradients_against_finite_differences():
    key = jax.random.key(0)
    logits = jax.random.normal(key, (3, 5))
    allowed = jnp.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 1, 1, 0, 1]], bool)
    teacher = jnp.array([[1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
    check_grads(lambda x: jnp.sum(teacher_set_loss(x, allowed, teacher)), (logits,), 1, ["rev"], atol=1e-2, rtol=1e-2)
    solved = jnp.array([True, False, False])
    check_grads(
        lambda x: balanced_stop_loss(x, solved, jnp.ones(3, bool), 0.5),
        (logits[:, 0],),
        1,
        ["rev"],
        atol=1e-2,
        rtol=1e-2,
    )


def test_log_probs_of_all_actions_sum_to_one_and_split_stop_from_edits():
    allowed = jnp.array([True, False, True])
    log_probs = action_log_probs(jnp.float32(math.log(1 / 3)), jnp.array([0.0, 5.0, math.log(2)]), allowed)
    np.testing.assert_allclose(jnp.exp(log_probs), [1 / 4, 1 / 4, 0, 1 / 2], rtol=1e-6)
    assert log_probs[2] == NEVER


def test_masked_actions_are_never_drawn():
    """Three of six are masked though their logits are the same: exactly 0 draws, and a third each for the others."""
    allowed = jnp.array([1, 0, 1, 0, 1, 0], bool)
    logits = jnp.full((100_000, 6), 0.5)
    noise = jax.random.gumbel(jax.random.key(3), logits.shape)
    counts = np.bincount(choose_edit(logits, jnp.broadcast_to(allowed, logits.shape), noise), minlength=7)
    assert counts[[0, 2, 4, 6]].sum() == 0
    np.testing.assert_allclose(counts[[1, 3, 5]] / 100_000, 1 / 3, atol=0.01)


def test_nothing_allowed_is_no_action():
    none = jnp.zeros(4, bool)
    assert int(choose_edit(jnp.zeros(4), none)) == -1
    np.testing.assert_array_equal(masked_log_softmax(jnp.zeros(4), none), [NEVER] * 4)


def test_ties_go_to_the_lowest_index():
    assert int(choose_edit(jnp.array([1.0, 2.0, 2.0]), jnp.ones(3, bool))) == 2
