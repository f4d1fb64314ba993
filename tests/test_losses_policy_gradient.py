"""Rewards, advantages, the clipped objective and the KL against hand-worked numbers."""

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
from fuyu_jax.learn.losses.policy_gradient import (
    clipped_policy_loss,
    entropy,
    exact_kl,
    fixed_step_rewards,
    group_advantages,
    return_spread,
    same_state_advantages,
    step_rewards,
)
from fuyu_jax.learn.losses.reduce import masked_mean


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.5, 1.0, -1.2, 0.0),
        (1.5, -1.0, 1.5, 1.5),
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.8, 0.0),
        (1.0, 2.0, -2.0, -2.0),
    ],
)
def test_clipped_loss_and_its_slope(ratio, advantage, loss, slope):
    def of(log_prob):
        return clipped_policy_loss(log_prob, jnp.float32(0.0), jnp.float32(advantage)).loss

    value, gradient = jax.value_and_grad(of)(jnp.float32(math.log(ratio)))
    assert float(value) == pytest.approx(loss, rel=1e-5)
    assert float(gradient) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_clip_is_reported_where_it_acts():
    log_ratio = jnp.log(jnp.array([1.5, 1.5, 0.5, 0.5, 1.1]))
    advantage = jnp.array([1.0, -1.0, 1.0, -1.0, 1.0])
    clipped = clipped_policy_loss(log_ratio, jnp.zeros(5), advantage).clipped
    np.testing.assert_array_equal(clipped, [True, False, False, True, False])


def test_no_gradient_through_the_advantage():
    slope = jax.grad(lambda a: clipped_policy_loss(jnp.float32(0.1), jnp.float32(0.0), a).loss)(jnp.float32(1.0))
    assert slope == 0.0


def test_ratio_is_exactly_one_before_any_update():
    log_prob = -20 * jax.random.uniform(jax.random.key(0), (1000,))
    clipped = clipped_policy_loss(log_prob, log_prob, jnp.ones(1000))
    np.testing.assert_array_equal(clipped.ratio, np.ones(1000))
    assert not clipped.clipped.any()


@pytest.mark.parametrize("old", [-200.0, NEVER, 200.0])
def test_a_masked_decision_with_an_absurd_ratio_has_a_zero_gradient(old):
    """exp(200) is infinite in float32, and infinity times the mask's 0 would be NaN."""
    mask = jnp.array([1.0, 0.0])

    def mean(log_prob):
        return masked_mean(clipped_policy_loss(log_prob, jnp.array([-1.0, old]), jnp.array([1.0, 0.0])).loss, mask)

    loss, slope = jax.value_and_grad(mean)(jnp.array([-1.0, 0.0]))
    assert float(loss) == -1.0
    np.testing.assert_array_equal(slope, [-1.0, 0.0])


def test_one_mean_over_all_decisions():
    """A decision of loss 4 in one trajectory and three of loss 0 in another: 1, not 2 (each trajectory's own mean
    first) and not 0.5 (divided by the longest possible). The KL is averaged in the same way.
    """
    log_prob = jnp.zeros((2, 4))
    active = jnp.array([[1, 0, 0, 0], [1, 1, 1, 0]], bool)
    advantage = jnp.zeros((2, 4)).at[0, 0].set(-4.0)
    assert float(masked_mean(clipped_policy_loss(log_prob, log_prob, advantage).loss, active)) == 1.0
    certain, even = masked_log_softmax(jnp.zeros(2), jnp.array([True, False])), jnp.log(jnp.full(2, 0.5))
    policy = jnp.tile(even[None, None], (2, 4, 1)).at[0, 0].set(certain)
    kl = masked_mean(exact_kl(policy, jnp.broadcast_to(even, policy.shape)), active)
    assert float(kl) == pytest.approx(math.log(2) / 4, rel=1e-6)


def test_advantages_stay_within_their_group():
    advantages = group_advantages(jnp.array([[0.0, 0, 0, 4], [10, 10, 10, 10]]))
    np.testing.assert_array_equal(advantages, [[-1, -1, -1, 3], [0, 0, 0, 0]])
    scaled = group_advantages(jnp.array([[0.0, 0, 0, 4], [10, 10, 10, 10]]), norm_std=True)
    np.testing.assert_allclose(scaled, [[-0.57735] * 3 + [1.7320508], [0] * 4], rtol=1e-5)


@pytest.mark.parametrize("norm_std", [False, True])
@pytest.mark.parametrize("group", [1, 4, 7, 8, 16])
def test_equal_rewards_give_exactly_zero(group, norm_std):
    """The mean of equal float32 numbers is often one unit in the last place off."""
    rewards = np.random.default_rng(0).uniform(-5, 5, (300, 1)).astype(np.float32)
    returns = np.broadcast_to(rewards, (300, group))
    assert group != 7 or (returns - returns.mean(axis=-1, keepdims=True)).any()  # the trap is there
    np.testing.assert_array_equal(group_advantages(jnp.asarray(returns), norm_std), np.zeros((300, group)))


@pytest.mark.parametrize("norm_std", [False, True])
def test_a_return_that_is_no_number_leaves_its_group_comparable(norm_std):
    nan, inf = float("nan"), float("inf")
    returns = jnp.array([[0.0, nan, 4.0, inf], [nan, 3.0, nan, nan], [nan, nan, nan, nan], [0.3, 0.3, 0.3, -inf]])
    size = 1.0 if norm_std else 2.0
    expected = [[-size, 0, size, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(group_advantages(returns, norm_std), expected)


def test_spread_over_the_batch_is_not_the_spread_that_credit_lives_on():
    """Two groups, one all right and one all wrong: a wide batch from which nothing is learnt."""
    spread = return_spread(jnp.array([[1.0, 1.0], [0.0, 0.0]]))
    assert (float(spread.batch_std), float(spread.group_std), float(spread.zero_groups)) == (0.5, 0.0, 1.0)
    spread = return_spread(jnp.array([[0.0, 0, 0, 4], [10, 10, 10, 10], [1, 1, 3, jnp.nan]]))
    assert float(spread.zero_groups) == pytest.approx(1 / 3, rel=1e-6)
    assert float(spread.group_std) == pytest.approx((math.sqrt(3) + 0 + math.sqrt(8 / 9)) / 3, rel=1e-5)
    assert float(spread.batch_std) == pytest.approx(np.std([0, 0, 0, 4, 10, 10, 10, 10, 1, 1, 3]), rel=1e-5)


def test_without_spread_only_the_kl_pulls():
    """All rewards equal: without the KL the gradient is exactly 0; with it, and off the reference, it is the KL's."""
    advantage = group_advantages(jnp.ones((1, 4)), norm_std=True)[0]
    logits = jnp.array([0.2, -0.1, 0.4])
    reference = jax.nn.log_softmax(jnp.zeros(3))

    def objective(logits, kl_weight):
        log_probs = jax.nn.log_softmax(logits)
        clipped = clipped_policy_loss(jnp.tile(log_probs[:1], 4), jnp.tile(log_probs[:1], 4), advantage)
        return jnp.mean(clipped.loss) + kl_weight * exact_kl(log_probs, reference)

    np.testing.assert_array_equal(jax.grad(objective)(logits, 0.0), np.zeros(3))
    pull = jax.grad(lambda x: 0.04 * exact_kl(jax.nn.log_softmax(x), reference))(logits)
    np.testing.assert_allclose(jax.grad(objective)(logits, 0.04), pull, atol=1e-8)
    assert np.abs(pull).max() > 1e-3
    np.testing.assert_allclose(jax.grad(objective)(jnp.zeros(3), 0.04), np.zeros(3), atol=1e-8)


def test_equal_rewards_have_a_zero_gradient():
    slope = jax.grad(lambda r: jnp.sum(group_advantages(r, norm_std=True)))(jnp.full((1, 4), 0.3))
    np.testing.assert_array_equal(slope, np.zeros((1, 4)))


def _episode(active, stopped, solved, potential):
    arrays = (
        jnp.array(active, bool),
        jnp.array(stopped, bool),
        jnp.array(solved, bool),
        jnp.array(potential, jnp.float32),
    )
    return np.asarray(step_rewards(*arrays))


def test_rewards_of_a_right_stop():
    got = _episode([1, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 1, 1], [0.25, 0.5, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(got, [-0.01 + 0.25, -0.01 + 0.5, 1.0 - 1.0, 0], atol=1e-6)


def test_rewards_of_a_false_stop():
    got = _episode([1, 1, 0], [0, 1, 0], [0, 0, 0, 0], [0.5, 0.75, 0.75, 0.75])
    np.testing.assert_allclose(got, [-0.01 + 0.25, -0.2 - 0.75, 0], atol=1e-6)


def test_rewards_of_a_spent_budget():
    solved = _episode([1, 1], [0, 0], [0, 0, 1], [0.0, 0.5, 1.0])
    np.testing.assert_allclose(solved, [-0.01 + 0.5, -0.01 + 1.0 - 0.5], atol=1e-6)
    unsolved = _episode([1, 1], [0, 0], [0, 1, 0], [0.0, 1.0, 0.5])
    np.testing.assert_allclose(unsolved, [-0.01 + 1.0, -0.01 - 1.0], atol=1e-6)


def _fixed(active, stopped, solved, reachable):
    return np.asarray(fixed_step_rewards(*(jnp.array(part, bool) for part in (active, stopped, solved, reachable))))


def test_fixed_rewards_by_hand():
    """Kept, destroyed, then an edit that can neither keep nor destroy anything, then a false STOP."""
    got = _fixed([1, 1, 1, 1, 0], [0, 0, 0, 1, 0], [0] * 6, [1, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(got, [0.2, -0.5, 0.0, -0.5, 0.0], atol=1e-7)
    right_stop = _fixed([1, 1, 0], [0, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1])
    np.testing.assert_allclose(right_stop, [0.2, 1.0, 0.0], atol=1e-7)
    spent_budget = _fixed([1, 1], [0, 0], [0, 0, 1], [1, 1, 1])
    np.testing.assert_allclose(spent_budget, [0.2, 1.2], atol=1e-7)
    passing_by = _fixed([1, 1], [0, 0], [0, 1, 0], [1, 1, 0])
    np.testing.assert_allclose(passing_by, [0.2, -0.5], atol=1e-7)


def test_fixed_rewards_prefer_dawdling_and_shaped_ones_do_not():
    """Four harmless detours before the same right STOP: what the fixed bonus pays for."""
    short = ([1, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1])
    long = ([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1, 1])
    assert _fixed(*long, [1] * 7).sum() > _fixed(*short, [1] * 7).sum()
    potential = [1.0] * 7
    assert _episode(*long, potential).sum() < _episode(*short, potential).sum()


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.booleans(), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=7, max_size=7))
def test_fixed_rewards_equal_a_plain_loop(length, stops, states):
    solved, reachable = (list(column) for column in zip(*states, strict=True))
    expected = [0.0] * 6
    for t in range(length):
        if stops and t == length - 1:
            expected[t] = 1.0 if solved[t] else -0.5
        else:
            if reachable[t]:
                expected[t] += 0.2 if reachable[t + 1] else -0.5
            if t == length - 1 and solved[t + 1]:
                expected[t] += 1.0
    active = [t < length for t in range(6)]
    stopped = [stops and t == length - 1 for t in range(6)]
    np.testing.assert_allclose(_fixed(active, stopped, solved, reachable), expected, atol=1e-6)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.booleans(), st.lists(st.floats(0, 1, width=32), min_size=7, max_size=7))
def test_shaping_sums_to_minus_the_first_potential(length, stops, potential):
    """Potential-based shaping adds a constant to a trajectory's return (Ng et al. 1999)."""
    active = [t < length for t in range(6)]
    stopped = [stops and t == length - 1 for t in range(6)]
    solved = [False] * 7
    shaped = _episode(active, stopped, solved, potential).sum()
    plain = _episode(active, stopped, solved, [0.0] * 7).sum()
    assert shaped - plain == pytest.approx(-potential[0], abs=1e-5)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(0, 3), st.booleans()), min_size=8, max_size=8))
def test_credit_within_a_state_by_hand(decisions):
    credit, state, active = (list(column) for column in zip(*decisions, strict=True))
    expected = []
    for mine, here, on in decisions:
        peers = [c for c, s, a in decisions if s == here and a]
        if not on:
            expected.append(0.0)
        else:
            expected.append(mine - sum(peers) / len(peers) if len(peers) > 1 else mine)
    got = same_state_advantages(jnp.array(credit, jnp.float32), jnp.array(state, jnp.uint32), jnp.array(active))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_kl_by_hand():
    policy = jnp.log(jnp.array([0.5, 0.25, 0.25]))
    reference = jnp.log(jnp.array([0.25, 0.25, 0.5]))
    assert float(exact_kl(policy, reference)) == pytest.approx(0.25 * math.log(2), rel=1e-6)
    assert float(entropy(policy)) == pytest.approx(1.5 * math.log(2), rel=1e-6)


def test_kl_of_equal_policies_is_exactly_zero_and_masked_actions_add_nothing():
    logits = jnp.array([0.3, -1.0, 2.0])
    allowed = jnp.array([True, False, True])
    one = action_log_probs(jnp.float32(-0.4), logits, allowed)
    assert float(exact_kl(one, one)) == 0.0
    assert one[2] == NEVER
    gradient = jax.grad(lambda x: exact_kl(action_log_probs(jnp.float32(0.1), x, allowed), one))(logits)
    assert np.isfinite(gradient).all() and gradient[1] == 0.0


def test_kl_survives_rounding():
    """Two ways of computing the same log-probabilities differ by units in the last place; their KL does not show it."""
    one = jax.nn.log_softmax(3 * jax.random.normal(jax.random.key(0), (200, 481)), axis=-1)
    other = one + 1e-6 * jax.random.uniform(jax.random.key(1), one.shape, minval=-1.0)
    plain = jnp.sum(jnp.exp(one) * (one - other), axis=-1)
    assert jnp.abs(plain).max() > 1e-7 and plain.min() < 0.0  # the trap is there
    kl = exact_kl(one, other)
    assert float(kl.min()) >= 0.0 and float(kl.max()) < 1e-11
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(exact_kl(x, one)))(one), np.zeros(one.shape))


@hypothesis_settings(max_examples=60, deadline=None)
@given(*[st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=5, max_size=5)] * 2)
def test_kl_equals_the_definition(policy, reference):
    """In double precision, with what the policy never does; the reference allows at least what the policy does."""
    allowed = [True, *(on for _, on in policy[1:])]
    wider = [on or also for on, (_, also) in zip(allowed, reference, strict=True)]
    logits, other = (np.array([x for x, _ in rows], np.float64) for rows in (policy, reference))
    log_p = logits - np.log(np.exp(logits[allowed]).sum())
    log_r = other - np.log(np.exp(other[wider]).sum())
    expected = (np.exp(log_p) * (log_p - log_r))[allowed].sum()
    ours = exact_kl(
        masked_log_softmax(jnp.array(logits, jnp.float32), jnp.array(allowed)),
        masked_log_softmax(jnp.array(other, jnp.float32), jnp.array(wider)),
    )
    assert float(ours) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_policy_gradients_against_finite_differences():
    allowed = jnp.array([True, True, False, True])
    reference = action_log_probs(jnp.float32(0.2), jnp.zeros(4), allowed)

    def objective(stop, logits):
        log_probs = action_log_probs(stop, logits, allowed)
        clipped = clipped_policy_loss(log_probs[2], jnp.float32(-1.0), jnp.float32(0.7))
        return clipped.loss + exact_kl(log_probs, reference) - 0.1 * entropy(log_probs)

    point = (jnp.float32(-0.3), jnp.array([0.1, -0.5, 1.0, 0.4]))
    check_grads(objective, point, 1, ["rev"], atol=1e-2, rtol=1e-2)
