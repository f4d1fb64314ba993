"""The cached, packed and accumulated ways of training and rolling out are the same function as the plain one."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_sweeps import FixedStream, small_policy, some_tasks

from fuyu_jax.evaluate.measure import lane_keys
from fuyu_jax.learn.arms.bc import Cloning, CloningOptions
from fuyu_jax.learn.arms.grpo_echo import GrpoOptions, grpo_arm
from fuyu_jax.learn.credit import CreditOptions
from fuyu_jax.learn.demos import Demonstrations
from fuyu_jax.learn.experience import RolloutOptions
from fuyu_jax.learn.training import accumulated_gradient
from fuyu_jax.policy import make_play
from fuyu_jax.rollout import repeat_lanes
from vm.types import THREEFRY

KEY = jax.random.key(3, impl=THREEFRY)
ROLLOUTS = RolloutOptions(group=2, states=3)
GRPO = GrpoOptions(kl_weight=0.1, anchor_weight=1.0, echo_weight=0.1)


class FixedSource:
    """Gives the same eight demonstrations again and again; their prompts have unequal lengths."""

    def next_batch(self, size):
        return Demonstrations(some_tasks(size), jax.random.split(KEY, size))


@pytest.fixture(scope="module")
def policy_and_params():
    policy, params = small_policy()
    return dataclasses.replace(policy, position_gap=5), params


def cloning_gradient(policy, params, pieces=1):
    options = CloningOptions(
        updates=1, epochs=1, tasks=8, states=8, learning_rate=1e-3, echo_weight=0.1, pieces=pieces
    )  # eight states of each path: repairs shorter than that show their states more than once, and stop early
    return Cloning(policy, FixedSource(), options).gradient(params, KEY)


@pytest.fixture(scope="module")
def plain_cloning(policy_and_params):
    return cloning_gradient(*policy_and_params)


def check_same(one, other):
    (gradient, terms), (other_gradient, other_terms) = one, other
    assert terms.keys() == other_terms.keys()
    for name in terms:
        np.testing.assert_allclose(terms[name], other_terms[name], rtol=1e-4, atol=1e-5, err_msg=name)
    chex.assert_trees_all_close(gradient, other_gradient, atol=2e-5, rtol=2e-3)


def test_prompts_of_the_batch_have_unequal_lengths(policy_and_params):
    policy, _ = policy_and_params
    lengths = policy.prompt_ids(some_tasks(8))[1].sum(axis=1)
    assert len(set(lengths.tolist())) > 2


def test_cloning_is_the_same_with_one_full_pass_a_state(policy_and_params, plain_cloning):
    policy, params = policy_and_params
    check_same(plain_cloning, cloning_gradient(dataclasses.replace(policy, full_pass=True), params))


@pytest.mark.parametrize("pieces", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_cloning_is_the_same_in_parts(policy_and_params, plain_cloning, pieces):
    check_same(plain_cloning, cloning_gradient(*policy_and_params, pieces))


@pytest.mark.slow
def test_the_reward_arm_is_the_same_in_parts_and_with_full_passes(policy_and_params):
    policy, params = policy_and_params
    play = make_play(policy, no_repeat=True)

    def arm(policy):
        return grpo_arm(policy, play, FixedStream(), 8, ROLLOUTS, CreditOptions("execution"), GRPO)

    turn, _ = arm(policy).collect(params, params, KEY)

    def gradient(policy, pieces):
        some = arm(policy)
        batch = (turn, some.share(turn))
        return jax.jit(lambda params: accumulated_gradient(some.loss, params, batch, pieces))(params)

    plain = gradient(policy, 1)
    check_same(plain, gradient(policy, 4))
    check_same(plain, gradient(dataclasses.replace(policy, full_pass=True), 1))


def test_episodes_are_the_same_with_one_full_pass_a_state(policy_and_params):
    """Lanes with unequal budgets and sampled stops: some end at once, some use all steps."""
    policy, params = policy_and_params
    tasks = some_tasks(8)
    budget = jnp.broadcast_to(jnp.array([1, 7], jnp.int32), (8, 2))
    keys = lane_keys(KEY, jnp.arange(8), 2)
    starts = repeat_lanes(tasks.start, 2)
    full_policy = dataclasses.replace(policy, full_pass=True)
    cached, full = (
        make_play(some, True)(params, tasks, starts, budget, keys, jnp.asarray(True)) for some in (policy, full_policy)
    )
    assert len(set(np.asarray(cached.active.sum(axis=0)).ravel().tolist())) > 1
    np.testing.assert_array_equal(cached.action, full.action)
    np.testing.assert_allclose(cached.log_prob, full.log_prob, atol=1e-4)
