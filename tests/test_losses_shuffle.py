"""The controls' permutations: nobody keeps its own, nothing is lost, and who doesn't count takes no part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuyu_jax.learn.losses.shuffle import random_cycle, random_half, shuffle_entries, shuffle_within

CYCLE = jax.jit(random_cycle)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_one_cycle_through_all_that_count(seed, share):
    counts = np.random.default_rng(seed).random(23) < share
    donor = np.asarray(CYCLE(jax.random.key(seed), jnp.asarray(counts)))
    assert sorted(donor) == list(range(23))
    np.testing.assert_array_equal(donor[~counts], np.flatnonzero(~counts))
    members = set(np.flatnonzero(counts))
    if len(members) > 1:
        assert not (donor[counts] == np.flatnonzero(counts)).any()
        at = first = min(members)
        visited = {at}
        while (at := int(donor[at])) != first:
            visited.add(at)
        assert visited == members


@pytest.mark.parametrize("count", [1, 2])
def test_one_stays_and_two_swap(count):
    counts = jnp.zeros(6, bool).at[jnp.array([1, 4][:count])].set(True)
    got = shuffle_entries(jax.random.key(0), jnp.arange(6), counts)
    assert got.tolist() == ([0, 1, 2, 3, 4, 5] if count == 1 else [0, 4, 2, 3, 1, 5])


def test_every_cycle_is_as_likely():
    """Of four entries there are six cycles; each appears a sixth of the time over 6000 keys."""
    donors = jax.vmap(lambda key: random_cycle(key, jnp.ones(4, bool)))(jax.random.split(jax.random.key(0), 6000))
    kinds, counts = np.unique(np.asarray(donors), axis=0, return_counts=True)
    assert len(kinds) == 6
    np.testing.assert_allclose(counts / 6000, 1 / 6, atol=0.02)


def test_rewards_move_among_the_trajectories_of_a_batch():
    """Distinct rewards of 6 groups of 4, three of them padding: the multiset stays, every owner changes."""
    rewards = jnp.arange(24, dtype=jnp.float32).reshape(6, 4).at[5, 3].set(jnp.nan)
    counts = jnp.ones((6, 4), bool).at[5, 1:].set(False)
    got = np.asarray(jax.jit(shuffle_entries)(jax.random.key(3), rewards, counts))
    assert sorted(got[counts].tolist()) == sorted(np.asarray(rewards)[counts].tolist())
    assert (got != np.asarray(rewards))[counts].all()
    np.testing.assert_array_equal(got[~counts], np.asarray(rewards)[~counts])
    moved_group = got // 4 != np.arange(6)[:, None]
    assert moved_group[counts].mean() > 0.5, "they move between groups, not only within them"


def test_what_belongs_together_moves_together():
    """Solutions among tasks: a task that found none neither gives nor gets."""
    solutions = {"op": jnp.arange(10).reshape(5, 2), "length": 10 * jnp.arange(5)}
    found = jnp.array([True, False, True, True, True])
    got = shuffle_entries(jax.random.key(1), solutions, found)
    owner = np.asarray(got["length"]) // 10
    np.testing.assert_array_equal(got["op"], np.asarray(solutions["op"])[owner])
    assert owner[1] == 1 and sorted(owner) == list(range(5))
    assert (owner[found] != np.flatnonzero(found)).all()


def test_advantages_move_within_their_own_state():
    advantage = jnp.arange(60, dtype=jnp.float32).reshape(3, 4, 5)
    counts = jnp.ones((3, 4, 5), bool).at[1, 2, 1:4].set(False)
    got = np.asarray(jax.jit(shuffle_within)(jax.random.key(0), advantage, counts))
    np.testing.assert_array_equal(got // 5, np.asarray(advantage) // 5)
    np.testing.assert_array_equal(np.sort(got, axis=-1), advantage)
    assert (got != np.asarray(advantage))[counts].all()
    assert got[1, 2].tolist() == [34, 31, 32, 33, 30]
    orders = {tuple(row % 5) for row in got.reshape(-1, 5)}
    assert len(orders) > 4, "every state has a permutation of its own"


def test_half_of_the_labels_are_swapped():
    counts = jnp.ones((7, 5), bool).at[:, 4].set(False)
    picks = jax.vmap(lambda key: random_half(key, counts))(jax.random.split(jax.random.key(0), 2000))
    assert (np.asarray(picks).sum(axis=(1, 2)) == 14).all()
    assert not picks[:, :, 4].any()
    np.testing.assert_allclose(np.asarray(picks).mean(axis=0)[:, :4], 0.5, atol=0.06)
    assert int(random_half(jax.random.key(0), jnp.array([True, True, False, True])).sum()) == 2
    assert not random_half(jax.random.key(0), jnp.zeros(3, bool)).any()


def test_the_key_decides():
    counts = jnp.ones(50, bool)
    one, again, other = (CYCLE(jax.random.key(seed), counts) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (np.asarray(one) != np.asarray(other)).any()
