"""What is sampled, what is scored and who gets the credit are about the same actions, lanes and tasks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_samples import LISTINGS, tasks
from test_rollout import EDITS, hesitant_policy, lanes_of, run, stubborn_policy

from fuyu_jax.controller.distribution import action_log_probs, choose_edit
from fuyu_jax.learn.credit import CreditOptions, advantages
from fuyu_jax.learn.losses.policy_gradient import clipped_policy_loss
from fuyu_jax.rollout import Episodes, rollout
from vm import Program

COUNT = len(LISTINGS)


def test_sampling_and_scoring_share_one_distribution():
    """Logits 2 and 0 at temperature 1/2: -0.018150 on both sides, where temperature 1 would score -0.126928."""
    allowed = jnp.array([True, True, False])
    logits = jnp.array([2.0, 0.0, 9.0]) / 0.5
    log_probs = action_log_probs(jnp.float32(-jnp.inf), logits, allowed)
    assert float(log_probs[1]) == pytest.approx(-0.018150, abs=1e-6)
    noise = jax.random.gumbel(jax.random.key(0), (100_000, 3))
    drawn = choose_edit(jnp.tile(logits, (100_000, 1)), jnp.tile(allowed, (100_000, 1)), noise)
    share = np.mean(np.asarray(drawn) == 1)
    assert share == pytest.approx(np.exp(-0.018150), abs=0.002)
    assert not (np.asarray(drawn) == 3).any()
    warmer = action_log_probs(jnp.float32(-jnp.inf), jnp.array([2.0, 0.0, 9.0]), allowed)
    false_ratio = clipped_policy_loss(warmer[1], log_probs[1], jnp.float32(1.0)).ratio
    assert float(false_ratio) == pytest.approx(0.897, abs=1e-3)


@pytest.fixture(scope="module")
def sampled():
    keys = jax.random.split(jax.random.key(4), (COUNT, 6))
    return run(hesitant_policy, np.full((COUNT, 6), 8), keys=keys, sampled=True)


def test_recorded_log_probabilities_are_those_of_the_recorded_choice(sampled):
    """Scored again from the logits and the recorded mask, STOP included, the ratio is 1."""
    lead = sampled.action.shape
    logits = jnp.broadcast_to(-jnp.arange(EDITS, dtype=jnp.float32).reshape(1, 1, 1, -1), (*lead, EDITS))
    log_probs = action_log_probs(jnp.full(lead, np.log(1 / 3), jnp.float32), logits, sampled.allowed)
    scored = jnp.take_along_axis(log_probs, sampled.action[..., None], axis=-1)[..., 0]
    active = np.asarray(sampled.active)
    stops = np.asarray(sampled.action) == 0
    assert (active & stops).any() and (active & ~stops).any()
    ratio = clipped_policy_loss(scored, sampled.log_prob, jnp.ones(lead)).ratio
    np.testing.assert_allclose(np.asarray(ratio)[active], 1.0, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(sampled.log_prob)[~active], 0)


def test_every_edit_taken_was_allowed(sampled):
    edits = np.asarray(sampled.active & (sampled.action > 0))
    mask = np.asarray(jnp.take_along_axis(sampled.allowed, jnp.maximum(sampled.action - 1, 0)[..., None], axis=-1))
    assert mask[..., 0][edits].all()
    assert np.asarray(sampled.valid)[edits].all()


def test_more_steps_than_the_budget_change_nothing(sampled):
    """Lanes of a budget of 2 in a scan of 2, 3 and 8 steps: the same episodes, and nothing after them."""
    some = tasks()
    keys = jax.random.split(jax.random.key(4), (COUNT, 6))
    budget = jnp.full((COUNT, 6), 2, jnp.int32)

    def episodes(steps):
        roll = jax.jit(rollout, static_argnames=("read", "steps"))
        start = lanes_of(some.start, 6)
        return roll(hesitant_policy, some.public, some.hidden, start, budget, steps=steps, keys=keys, sampled=True)

    short = episodes(2)
    for longer in (episodes(3), run(hesitant_policy, budget, keys=keys, sampled=True)):
        for one, other in zip(jax.tree.leaves(short), jax.tree.leaves(longer), strict=True):
            np.testing.assert_array_equal(one, other[: one.shape[0]])
        assert not longer.active[2:].any()
        for leaf in jax.tree.leaves(longer.program):
            assert (np.asarray(leaf)[2:] == np.asarray(leaf)[2]).all()


def test_every_key_is_used_once(monkeypatch):
    """Of two lanes that never stop: a key for the edit and one for STOP at each of three decisions."""
    used = []

    def watched(draw):
        def watch(key, *shape):
            jax.debug.callback(lambda numbers: used.append(tuple(numbers.tolist())), jax.random.key_data(key))
            return draw(key, *shape)

        return watch

    monkeypatch.setattr(jax.random, "gumbel", watched(jax.random.gumbel))
    monkeypatch.setattr(jax.random, "uniform", watched(jax.random.uniform))
    some = jax.tree.map(lambda leaf: leaf[:1], tasks())
    keys, budget = jax.random.split(jax.random.key(0), (1, 2)), jnp.full((1, 2), 3, jnp.int32)
    start = lanes_of(some.start, 2)
    episodes = rollout(
        stubborn_policy, some.public, some.hidden, start, budget, steps=3, keys=keys, sampled=jnp.asarray(True)
    )
    jax.effects_barrier()
    assert np.asarray(episodes.active).all()
    assert len(used) == 2 * 2 * 3 == len(set(used))


def test_other_keys_give_other_second_decisions(sampled):
    """A constant key after the first step would show only from the second on."""
    other = run(hesitant_policy, np.full((COUNT, 6), 8), keys=jax.random.split(jax.random.key(5), (COUNT, 6)),
                sampled=True)  # fmt: skip
    again = run(hesitant_policy, np.full((COUNT, 6), 8), keys=jax.random.split(jax.random.key(4), (COUNT, 6)),
                sampled=True)  # fmt: skip
    np.testing.assert_array_equal(sampled.action, again.action)
    both = np.asarray(sampled.active & other.active)
    for step in (0, 1, 2):
        assert (np.asarray(sampled.action) != np.asarray(other.action))[step][both[step]].any()


def test_rewards_are_compared_with_those_of_the_same_task():
    """Task A earns 0, 0, 0, 4 and task B 10 four times, all in the first step, where a group shares its state.

    A layout mixed up between tasks and lanes, or a mean over the batch, gives B something.
    """
    active = jnp.zeros((3, 2, 4), bool).at[0].set(True)
    rewards = jnp.zeros((3, 2, 4)).at[0].set(jnp.array([[0.0, 0, 0, 4], [10, 10, 10, 10]]))
    code = jnp.broadcast_to(jnp.arange(2, dtype=jnp.int32).reshape(1, 2, 1, 1), (4, 2, 4, 8))
    nothing = dict.fromkeys(Episodes._fields)
    episodes = Episodes(**{**nothing, "program": Program(code, code), "active": active})
    credit = np.asarray(advantages(episodes, rewards, CreditOptions("terminal", trajectory_weight=1.0, limit=100.0)))
    np.testing.assert_allclose(credit[0], [[-2, -2, -2, 6], [0, 0, 0, 0]])  # the step's and the trajectory's
    assert not credit[1:].any()
