"""Episodes under scripted policies whose every move is known."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_samples import DISTANCES, LISTINGS, tasks

import vm
import vm.reference
from fuyu_jax.controller.heads import Readout
from fuyu_jax.rollout import rollout
from vm import oracle

COUNT = len(LISTINGS)
EDITS = vm.DEFAULT_SETTINGS.num_actions - 1


def readout(edit_logits, stop_logit):
    zeros = jnp.zeros(stop_logit.shape)
    return Readout(
        edit_logits, stop_logit, zeros, jnp.zeros((*zeros.shape, 18)), zeros[..., None], zeros[..., None, None]
    )


def oracle_policy(seen):
    """Makes the oracle's edits, and is sure to stop when there is none."""
    distance = jax.vmap(jax.vmap(lambda p, r: oracle.distance(p, r), (0, None)))
    said = distance(vm.Program(seen.op, seen.arg), tasks().reference)
    return readout(jnp.where(said.teacher[..., 1:], 99.0, -99.0), jnp.where(said.distance == 0, 99.0, -99.0))


def stubborn_policy(seen):
    """Always likes the same edits best, in the order of their index, and never stops."""
    lead = seen.step.shape
    logits = jnp.broadcast_to(-jnp.arange(EDITS, dtype=jnp.float32).reshape((1,) * len(lead) + (-1,)), (*lead, EDITS))
    return readout(logits, jnp.full(lead, -20.0))


def lanes_of(program, lanes):
    return jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], lanes, axis=1), program)


def run(read, budget, rows=slice(None), keys=None, sampled=False, **options):
    some = jax.tree.map(lambda leaf: leaf[rows], tasks())
    budget = jnp.asarray(budget, jnp.int32)
    if keys is None:
        keys = jax.random.split(jax.random.key(0), budget.shape)

    def episodes(public, hidden, start, budget, keys, sampled):
        return rollout(
            read,
            public,
            hidden,
            start,
            budget,
            steps=8,
            keys=keys,
            sampled=sampled,
            settings=vm.DEFAULT_SETTINGS,
            **options,
        )

    roll = _jitted(read, tuple(options.items()), episodes)
    return roll(some.public, some.hidden, lanes_of(some.start, budget.shape[1]), budget, keys, jnp.asarray(sampled))


_CACHE = {}


def _jitted(read, options, episodes):
    """One compilation for each policy and its options, shared by the tests of this module."""
    return _CACHE.setdefault((read, options), jax.jit(episodes))


@pytest.fixture(scope="module")
def guided():
    """The oracle's policy with budgets 0, 2, 5 and 8 in four lanes; it is so sure that sampling leaves no choice."""
    return run(oracle_policy, np.tile([0, 2, 5, 8], (COUNT, 1)), sampled=True)


def test_the_oracle_solves_exactly_what_its_distance_allows(guided):
    solved = np.asarray(guided.solved[-1])
    expected = [[distance <= budget for budget in (0, 2, 5, 8)] for distance in DISTANCES]
    np.testing.assert_array_equal(solved, expected)


def test_every_edit_is_counted_and_stop_costs_nothing(guided):
    edits = np.asarray((guided.active & (guided.action > 0)).sum(axis=0))
    np.testing.assert_array_equal(edits, [[min(d, b) for b in (0, 2, 5, 8)] for d in DISTANCES])
    stops = np.asarray((guided.active & (guided.action == 0)).sum(axis=0))
    np.testing.assert_array_equal(stops, [[d < b for b in (0, 2, 5, 8)] for d in DISTANCES])
    assert (np.asarray(guided.valid) == np.asarray(guided.active & (guided.action > 0))).all()


def test_a_finished_lane_stands_still(guided):
    op, active = np.asarray(guided.program.op), np.asarray(guided.active)
    for t in range(8):
        frozen = ~active[t]
        assert (op[t + 1][frozen] == op[t][frozen]).all()
        assert not active[t:][:, frozen].any(), "a lane that ended never starts again"


def test_public_counts_match_the_reference_interpreter(guided):
    some = tasks()
    for task, lane, t in ((1, 3, 0), (1, 3, 1), (3, 3, 4), (4, 1, 2)):
        program = jax.tree.map(lambda leaf, at=(t, task, lane): leaf[at], guided.program)
        right = 0
        for e in range(4):
            pair = [jax.tree.map(lambda leaf, at=(task, e, i): leaf[at], some.public.inputs) for i in (0, 1)]
            pair = [(int(v.type), int(v.length), tuple(np.asarray(v.words).tolist())) for v in pair]
            output, _, _ = vm.reference.run(program, pair)
            target = jax.tree.map(lambda leaf, at=(task, e): leaf[at], some.public.targets)
            right += output == (int(target.type), int(target.length), tuple(np.asarray(target.words).tolist()))
        assert int(guided.public[t, task, lane]) == right


def tried_twice(episodes):
    """(lane, step) of edits taken before in the same program, by plain Python."""
    op, arg, action = (np.asarray(x) for x in (episodes.program.op, episodes.program.arg, episodes.action))
    found = []
    for task in range(op.shape[1]):
        seen = set()
        for t in range(action.shape[0]):
            move = (*op[t, task, 0], *arg[t, task, 0], action[t, task, 0])
            if move in seen:
                found.append((task, t))
            seen.add(move)
    return found


def test_no_edit_twice_in_the_same_program():
    budget = np.full((COUNT, 1), 8)
    assert tried_twice(run(stubborn_policy, budget, no_repeat=False))
    assert not tried_twice(run(stubborn_policy, budget, no_repeat=True))


def test_a_lane_does_not_depend_on_its_neighbours():
    keys = jax.vmap(lambda task: jax.random.split(jax.random.fold_in(jax.random.key(0), task), 2))(jnp.arange(COUNT))
    together = run(stubborn_policy, np.full((COUNT, 2), 6), keys=keys, sampled=True)
    alone = run(stubborn_policy, np.full((1, 2), 6), rows=slice(2, 3), keys=keys[2:3], sampled=True)
    np.testing.assert_array_equal(alone.action[:, 0], together.action[:, 2])
    assert (np.asarray(together.action[:, :, 0]) != np.asarray(together.action[:, :, 1])).any()


def hesitant_policy(seen):
    """Stops with probability 1/4."""
    return stubborn_policy(seen)._replace(stop_logit=jnp.full(seen.step.shape, np.log(1 / 3), jnp.float32))


def test_sampled_stops_follow_their_probability():
    """P(STOP) = 1/4 at each of 400 first decisions."""
    keys = jax.random.split(jax.random.key(1), (COUNT, 80))
    episodes = run(hesitant_policy, np.full((COUNT, 80), 1), keys=keys, sampled=True)
    stopped = np.asarray(episodes.action[0] == 0)
    assert abs(stopped.mean() - 0.25) < 0.07
    np.testing.assert_allclose(np.asarray(episodes.log_prob[0])[stopped], np.log(0.25), rtol=1e-5)


def test_argmax_episodes_never_stop():
    episodes = run(oracle_policy, np.full((COUNT, 4), 8))
    assert (np.asarray(episodes.active).sum(axis=0) == 8).all()


def test_one_compilation_for_all_budgets_and_both_ways_of_choosing():
    some = tasks()
    start, keys = lanes_of(some.start, 1), jax.random.split(jax.random.key(0), (COUNT, 1))

    def episodes(budget, sampled):
        return rollout(stubborn_policy, some.public, some.hidden, start, budget, steps=4, keys=keys, sampled=sampled)

    roll = jax.jit(chex.assert_max_traces(episodes, n=1))
    for budget, sampled in ((1, False), (4, True)):
        roll(jnp.full((COUNT, 1), budget, jnp.int32), jnp.asarray(sampled))
