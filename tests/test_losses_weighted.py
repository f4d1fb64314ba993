"""The closed-form improved policy against plain Python, and its step against finite differences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fuyu_jax.controller.distribution import NEVER, action_log_probs
from fuyu_jax.learn.losses.policy_gradient import exact_kl
from fuyu_jax.learn.losses.weighted import action_advantages, choose_beta, improved_log_probs, regression_loss

REFERENCE = jnp.concatenate([jnp.log(jnp.array([0.4, 0.2, 0.2, 0.2])), jnp.array([NEVER])])
ALL_ALLOWED = jnp.array([1, 1, 1, 1, 0], bool)


def test_improved_policy_by_hand():
    """Actions 1 and 2 share 0.4; advantages log 3 apart at beta 1 divide it 3 to 1. The rest keep their own."""
    evaluated = jnp.array([0, 1, 1, 0, 0], bool)
    advantage = jnp.array([jnp.nan, math.log(3), 0.0, 7.0, jnp.inf])
    improved = improved_log_probs(REFERENCE, advantage, evaluated, 1.0)
    np.testing.assert_allclose(jnp.exp(improved), [0.4, 0.3, 0.1, 0.2, 0.0], rtol=1e-6)
    assert improved[0] == REFERENCE[0] and improved[3] == REFERENCE[3] and improved[4] == NEVER


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(-1, 1), st.booleans(), st.booleans()), min_size=6, max_size=6),
    st.sampled_from([0.02, 0.3, 5.0]),
)
def test_improved_policy_equals_plain_python(rows, beta):
    logits, advantage, evaluated, allowed = (list(column) for column in zip(*rows, strict=True))
    allowed = [True, *allowed[1:]]
    weights = [math.exp(logit) if on else 0.0 for logit, on in zip(logits, allowed, strict=True)]
    probs = [weight / sum(weights) for weight in weights]
    known = [on and seen for on, seen in zip(allowed, evaluated, strict=True)]
    raised = [p * math.exp(a / beta) for p, a in zip(probs, advantage, strict=True)]
    mass = sum(p for p, k in zip(probs, known, strict=True) if k)
    total = sum(r for r, k in zip(raised, known, strict=True) if k)
    expected = [mass * r / total if k else p for p, r, k in zip(probs, raised, known, strict=True)]
    reference = jnp.array([math.log(p) if p else NEVER for p in probs], jnp.float32)
    improved = improved_log_probs(reference, jnp.array(advantage, jnp.float32), jnp.array(evaluated), beta)
    np.testing.assert_allclose(jnp.exp(improved), expected, rtol=2e-3, atol=1e-6)
    assert all(improved[i] == NEVER for i in range(6) if not allowed[i])


def test_equal_advantages_leave_the_reference_exactly_as_it_is():
    reference = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (100, 7)), axis=-1)
    evaluated = jax.random.bernoulli(jax.random.key(1), 0.5, reference.shape)
    advantage = jnp.broadcast_to(jax.random.normal(jax.random.key(2), (100, 1)), reference.shape)
    np.testing.assert_array_equal(improved_log_probs(reference, advantage, evaluated, 0.01), reference)


def test_nothing_evaluated_leaves_the_reference_exactly_as_it_is():
    improved = improved_log_probs(REFERENCE, jnp.full(5, jnp.nan), jnp.zeros(5, bool), 0.1)
    np.testing.assert_array_equal(improved, REFERENCE)


def test_advantages_by_hand():
    """Mean of the evaluated under 0.2 and 0.2: 0.5. Where nothing differs they are exactly 0."""
    values = jnp.array([0.9, 1.0, 0.0, jnp.nan, 0.3])
    got = action_advantages(values, REFERENCE, jnp.array([0, 1, 1, 0, 0], bool))
    np.testing.assert_allclose(got, [0, 0.5, -0.5, 0, 0], atol=1e-6)
    probs = jax.random.dirichlet(jax.random.key(0), jnp.ones(7), (200,))
    values = np.broadcast_to(np.random.default_rng(0).uniform(-1, 1, (200, 1)).astype(np.float32), (200, 7))
    assert (values - np.asarray(jnp.sum(probs * values, axis=-1, keepdims=True))).any()  # the trap is there
    got = action_advantages(jnp.asarray(values), jnp.log(probs), jnp.ones((200, 7), bool))
    np.testing.assert_array_equal(got, np.zeros((200, 7)))


def test_a_baseline_does_not_change_the_improved_policy():
    values = jnp.array([0.2, 0.9, 0.1, 0.5, 0.0])
    evaluated = jnp.array([1, 1, 1, 0, 0], bool)
    advantage = action_advantages(values, REFERENCE, evaluated)
    np.testing.assert_allclose(
        improved_log_probs(REFERENCE, values, evaluated, 0.2),
        improved_log_probs(REFERENCE, advantage, evaluated, 0.2),
        rtol=1e-5,
    )


def test_the_improved_policy_solves_what_it_claims_to():
    """No policy on a fine grid has a better expected advantage less beta times the KL."""
    reference, advantage, beta = jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.array([-0.2, 0.1, 0.6]), 0.4

    def objective(log_probs):
        return jnp.sum(jnp.exp(log_probs) * advantage) - beta * exact_kl(log_probs, reference)

    ours = objective(improved_log_probs(reference, advantage, jnp.ones(3, bool), beta))
    a, b = np.meshgrid(np.linspace(0.001, 0.998, 120), np.linspace(0.001, 0.998, 120))
    inside = a + b < 0.9995
    grid = np.stack([a[inside], b[inside], 1 - a[inside] - b[inside]], axis=-1).astype(np.float32)
    best = float(jnp.max(jax.vmap(objective)(jnp.log(grid))))
    assert float(ours) >= best - 1e-6
    assert float(ours) == pytest.approx(best, abs=1e-3)


def test_regression_loss_and_slope_by_hand():
    """KL of (1/2, 1/4, 1/4) against (1/4, 1/4, 1/2) is a quarter of log 2; the slope is softmax less target."""
    target = jnp.log(jnp.array([0.5, 0.25, 0.25]))
    loss, slope = jax.value_and_grad(lambda x: regression_loss(jax.nn.log_softmax(x), target))(
        jnp.array([0.0, 0.0, math.log(2)])
    )
    assert float(loss) == pytest.approx(0.25 * math.log(2), rel=1e-5)
    np.testing.assert_allclose(slope, [-0.25, 0.0, 0.25], atol=1e-6)


def test_regression_starts_at_zero_and_sends_nothing_to_the_target_or_outside_the_mask():
    logits = jnp.array([0.3, -1.0, 2.0])
    allowed = jnp.array([True, False, True])
    start = action_log_probs(jnp.float32(-0.4), logits, allowed)
    assert float(regression_loss(start, start)) == 0.0
    slope = jax.grad(lambda target: regression_loss(start, target))(start)
    np.testing.assert_array_equal(slope, np.zeros(4))
    target = improved_log_probs(start, jnp.array([0.0, 0.0, jnp.nan, 1.0]), jnp.array([1, 1, 0, 1], bool), 0.5)
    slope = jax.grad(lambda x: regression_loss(action_log_probs(jnp.float32(-0.4), x, allowed), target))(logits)
    assert np.isfinite(slope).all() and slope[1] == 0.0 and slope[2] < 0.0


def test_regression_gradient_against_finite_differences():
    allowed = jnp.array([True, True, False, True])
    reference = action_log_probs(jnp.float32(0.2), jnp.zeros(4), allowed)
    target = improved_log_probs(reference, jnp.array([0.1, 0.5, -0.2, 0.9, 0.0]), jnp.array([1, 1, 0, 0, 1], bool), 0.3)
    point = (jnp.float32(-0.3), jnp.array([0.1, -0.5, 1.0, 0.4]))
    check_grads(
        lambda stop, logits: regression_loss(action_log_probs(stop, logits, allowed), target),
        point, 1, ["rev"], atol=1e-2, rtol=1e-2,
    )  # fmt: skip


@pytest.mark.parametrize("nats", [0.01, 0.05, 0.1])
def test_chosen_beta_spends_the_nats(nats):
    reference = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (40, 9)), axis=-1)
    advantage = jax.random.uniform(jax.random.key(1), reference.shape)
    evaluated = jax.random.bernoulli(jax.random.key(2), 0.6, reference.shape)
    weight = jnp.arange(40, dtype=jnp.float32) % 3
    beta, kl = jax.jit(choose_beta, static_argnums=4)(reference, advantage, evaluated, weight, nats)
    assert float(kl) == pytest.approx(nats, rel=1e-3)
    again = exact_kl(improved_log_probs(reference, advantage, evaluated, beta), reference)
    assert float(jnp.sum(again * weight) / jnp.sum(weight)) == pytest.approx(nats, rel=1e-3)


def test_chosen_beta_where_the_nats_cannot_be_spent():
    """All mass on the better of two equal actions is log 2 = 0.693 nats away, and no more is to be had."""
    reference = jnp.log(jnp.full((1, 2), 0.5))
    every, one = jnp.ones((1, 2), bool), jnp.ones(1)
    beta, kl = choose_beta(reference, jnp.array([[1.0, 0.0]]), every, one, 2.0)
    assert float(kl) == pytest.approx(math.log(2), rel=1e-5)
    assert float(beta) == pytest.approx(1e-4, rel=1e-3)
    assert float(choose_beta(reference, jnp.zeros((1, 2)), every, one, 0.1)[1]) == 0.0
