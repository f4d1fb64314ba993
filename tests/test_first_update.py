"""The first update of a reward arm, on the real rollouts of a small policy: nothing has moved yet, and it shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_sweeps import FixedStream, small_policy

from fuyu_jax.learn.arms.grpo_echo import GrpoOptions, grpo_arm, taken
from fuyu_jax.learn.credit import CreditOptions
from fuyu_jax.learn.experience import RolloutOptions
from fuyu_jax.learn.losses.policy_gradient import clipped_policy_loss, exact_kl
from fuyu_jax.learn.losses.preference import dpo_loss, pair_log_probs
from fuyu_jax.learn.training import start_training, take_step
from fuyu_jax.policy import make_play, make_score
from vm.types import THREEFRY

KEY = jax.random.key(7, impl=THREEFRY)
ROLLOUTS = RolloutOptions(group=3, states=4)
GRPO = GrpoOptions(kl_weight=0.1, anchor_weight=1.0, echo_weight=0.1)


@pytest.fixture(scope="module")
def policy_and_params():
    return small_policy()


@pytest.fixture(scope="module")
def turn(policy_and_params):
    """One turn's experience, with jax looking out for keys that are used twice."""
    policy, params = policy_and_params
    with jax.debug_key_reuse(True):
        play = make_play(policy, no_repeat=True)
        arm = grpo_arm(policy, play, FixedStream(), 6, ROLLOUTS, CreditOptions("reachability"), GRPO)
        return arm.collect(params, params, KEY)[0]


@pytest.fixture(scope="module")
def score(policy_and_params, turn):
    """A function of parameters: log-probabilities of all actions at each decision."""
    policy, _ = policy_and_params
    score = make_score(policy)
    return lambda params: score(params, turn.visits.tasks, turn.visits.states.seen, turn.visits.allowed)


@pytest.fixture(scope="module")
def log_probs(policy_and_params, score):
    return score(policy_and_params[1])


def test_jax_does_notice_a_key_used_twice():
    key = jax.random.key(0, impl=THREEFRY)
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        jax.jit(lambda key: jax.random.uniform(key) + jax.random.normal(key))(key)


def test_ratios_are_exactly_one(turn, log_probs):
    counts = np.asarray(turn.visits.states.weight > 0)
    clipped = clipped_policy_loss(taken(log_probs, turn.visits.states.action), turn.old_log_prob, turn.advantage)
    assert counts.sum() > 50
    np.testing.assert_array_equal(np.asarray(clipped.ratio)[counts], 1.0)
    assert not clipped.clipped.any()


def test_the_kl_is_exactly_zero(turn, log_probs):
    np.testing.assert_array_equal(exact_kl(log_probs, turn.reference), np.zeros(turn.advantage.shape))


def test_preferences_start_at_log_two_with_margins_of_exactly_zero(turn, log_probs):
    """The best of the teacher set against the policy's own choice."""
    winner = jnp.argmax(turn.visits.states.teacher, axis=-1).astype(jnp.int32)[..., None] + 1
    loser = turn.visits.states.action[..., None]
    pairs = [pair_log_probs(of, action) for of in (log_probs, turn.reference) for action in (winner, loser)]
    counts = (turn.visits.states.weight > 0)[..., None] & turn.visits.states.teacher.any(axis=-1, keepdims=True)
    said = dpo_loss(*pairs, counts)
    np.testing.assert_array_equal(said.margin, np.zeros(counts.shape))
    np.testing.assert_allclose(np.asarray(said.loss)[np.asarray(counts)], 0.693147, atol=1e-6)


def test_the_reference_stays_where_it_was_while_the_policy_moves(policy_and_params, turn, score):
    _, params = policy_and_params
    state = start_training(params)
    push = jax.tree.map(lambda leaf: 0.01 * jnp.ones_like(leaf), params.trained)
    for _ in range(10):
        state, _ = take_step(state, push, jnp.float32(0.01))
    np.testing.assert_array_equal(score(params), turn.reference)
    assert float(jnp.max(exact_kl(score(state.params), turn.reference))) > 1e-4


def test_decisions_that_count_were_allowed(turn):
    """Every log-probability that a ratio is made of is of an action inside the mask."""
    counts = np.asarray(turn.visits.states.weight > 0)
    old = np.asarray(turn.old_log_prob)[counts]
    assert (old > -50).all() and (old <= 0).all()
    assert np.isfinite(turn.advantage).all()
