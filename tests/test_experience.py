"""Experience: credit, signals and sampled decisions against plain Python, on episodes of a scripted policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_sweeps import small_policy
from task_samples import DISTANCES, LISTINGS, tasks
from test_rollout import oracle_policy, run

from fuyu_jax.learn.credit import CreditOptions, advantages, potentials
from fuyu_jax.learn.experience import Explored, RolloutOptions, make_explore, sample_decisions
from fuyu_jax.learn.states import label_states, oracle_states, spread_steps
from fuyu_jax.policy import make_play
from vm import DEFAULT_SETTINGS, Program, apply_action, oracle
from vm.types import THREEFRY

COUNT = len(LISTINGS)
STEP = CreditOptions("terminal")


@pytest.fixture(scope="module")
def guided():
    return run(oracle_policy, np.tile([2, 8], (COUNT, 1)), sampled=True)


@pytest.fixture(scope="module")
def distance(guided):
    ask = jax.vmap(jax.vmap(jax.vmap(lambda p, r: oracle.distance(p, r).distance, (0, None))), (0, None))
    return np.asarray(ask(guided.program, tasks().reference))


def test_potentials_by_hand(guided, distance):
    budget = jnp.array([[2, 8]] * COUNT)
    share = np.asarray(guided.public) / 4
    explored = Explored(tasks(), guided, budget, jnp.asarray(distance))
    assert not np.asarray(potentials("terminal", explored)).any()
    np.testing.assert_allclose(potentials("execution", explored), share)
    near = potentials("reachability", explored)
    assert near[0, 3, 0] == 0.5 * share[0, 3, 0]  # 5 edits do not fit a budget of 2
    assert near[0, 3, 1] == 0.5 * share[0, 3, 1] + 0.5
    assert near[5, 3, 1] == 1.0  # right, with 3 edits left


def test_advantages_of_equal_trajectories_are_zero():
    """Two lanes that take the same edits and earn the same: nothing is left to tell them apart."""
    twins = run(oracle_policy, np.full((COUNT, 2), 8))
    rewards = jnp.where(twins.active, 1.0, 0.0)
    np.testing.assert_array_equal(advantages(twins, rewards, STEP), np.zeros(rewards.shape))


def test_advantages_are_clipped_and_silent_where_inactive(guided):
    rewards = jax.random.normal(jax.random.key(0), guided.active.shape) * 9
    credit = np.asarray(advantages(guided, rewards, STEP))
    assert np.abs(credit).max() == 2.0
    assert not credit[~np.asarray(guided.active)].any()


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16])
def test_spread_steps_cover_the_range_evenly(count):
    """Four samples a path, over many keys: each step appears with the same frequency."""
    steps = jax.vmap(lambda key: spread_steps(key, jnp.int32(count), 4))(jax.random.split(jax.random.key(0), 4000))
    shares = np.bincount(np.asarray(steps).ravel(), minlength=count) / steps.size
    assert len(shares) == count
    np.testing.assert_allclose(shares, 1 / count, atol=0.02)
    assert (np.diff(np.asarray(steps), axis=1) >= 0).all()


def test_labels_of_states():
    """The start of each task, labelled after one edit of the oracle."""
    some = tasks()
    start = jax.tree.map(lambda leaf: leaf[:, None], some.start)
    said = jax.vmap(lambda p, r: oracle.distance(p, r))(some.start, some.reference)
    action = jnp.argmax(said.teacher, axis=-1).astype(jnp.int32)[:, None]
    ones = jnp.ones((COUNT, 1), jnp.int32)
    states = jax.jit(label_states, static_argnums=6)(
        some, start, action, 0 * ones, 4 * ones, ones.astype(jnp.float32), DEFAULT_SETTINGS
    )
    assert states.distance[:, 0].tolist() == list(DISTANCES)
    assert states.solved[:, 0].tolist() == [d == 0 for d in DISTANCES]
    assert states.teacher.any(axis=-1)[:, 0].tolist() == [d > 0 for d in DISTANCES]
    assert not (states.teacher & ~states.valid).any()
    # The second task is one edit away: after it the outputs are the targets.
    after = jax.tree.map(lambda leaf: np.asarray(leaf[1, 0]), states.next_outputs)
    np.testing.assert_array_equal(after.words, some.public.targets.words[1])
    assert (states.next_status[1, 0] == 0).all()


def test_oracle_states_lie_on_a_repair():
    """Each state is step edits nearer than the start, and its action leads one nearer still."""
    some = tasks()
    keys = jax.random.split(jax.random.key(5), COUNT)
    states = jax.jit(oracle_states, static_argnums=(3, 4))(some, keys, jax.random.key(6), 6, DEFAULT_SETTINGS)
    far = np.array(DISTANCES)[:, None]
    np.testing.assert_array_equal(states.distance, far - states.seen.step)
    assert (np.asarray(states.distance).min(axis=1) == 0).all(), "the end of the path is among the states"
    assert ((np.asarray(states.action) > 0) == (np.asarray(states.distance) > 0)).all()
    step = jax.vmap(jax.vmap(lambda op, arg, action: apply_action(Program(op, arg), action)[0]))
    after = step(states.seen.op, states.seen.arg, states.action)
    ask = jax.vmap(jax.vmap(lambda p, r: oracle.distance(p, r).distance, (0, None)))
    np.testing.assert_array_equal(ask(after, some.reference), np.maximum(np.asarray(states.distance) - 1, 0))


def test_second_turns_differ_between_seeds_and_no_key_is_used_twice():
    """The second turn of a run: a seed that only reached the first would show here."""
    policy, params = small_policy()
    explore = make_explore(policy, make_play(policy, True), RolloutOptions(group=2, states=2))

    def second_turn(seed):
        collect_key, _ = jax.random.split(jax.random.key(seed, impl=THREEFRY))
        roll_key, sample_key = jax.random.split(jax.random.fold_in(collect_key, 2))
        explored = explore(params, tasks(), roll_key)
        chosen = sample_decisions(explored, sample_key, 2)
        return np.concatenate([np.ravel(explored.budget), np.ravel(explored.episodes.action), np.ravel(chosen.step)])

    with jax.debug_key_reuse(True):
        one, again, other = (second_turn(seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() > 0.1
