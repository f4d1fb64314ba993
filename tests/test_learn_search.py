"""Arms that learn from a verified search: what it hands on is right, and labels are what it says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_sweeps import FixedStream, small_policy, some_tasks

import vm
from fuyu_jax.learn.arms.dagger import LabelOptions
from fuyu_jax.learn.arms.expert_iteration import expert_arm
from fuyu_jax.learn.arms.value_search import sample_tried, true_distances, value_search_arm
from fuyu_jax.learn.credit import CreditOptions
from fuyu_jax.learn.experience import RolloutOptions
from fuyu_jax.learn.objective import ImitationWeights
from fuyu_jax.learn.searching import make_search, solutions, were_read
from fuyu_jax.learn.states import Teaching
from fuyu_jax.policy import make_play
from fuyu_jax.search.frontier import unpack
from vm import reference
from vm.types import THREEFRY

KEY = jax.random.key(2, impl=THREEFRY)
COUNT, BUDGET = 6, 24
SIZES = RolloutOptions(group=2, states=3, teaching=Teaching("nearest"))
OPTIONS = LabelOptions(echo_weight=0.0, weights=ImitationWeights(edit=0.0, distance=1.0))


@pytest.fixture(scope="module")
def policy_and_params():
    return small_policy()


@functools.cache
def one_edit_away():
    """Tasks whose start program is the reference without its last instruction; the first is already right."""
    tasks = some_tasks(COUNT)
    last = np.asarray(tasks.length) - 1
    op = np.asarray(tasks.reference.op).copy()
    op[np.arange(1, COUNT), last[1:]] = 0
    return tasks._replace(start=vm.Program(jnp.asarray(op), tasks.reference.arg))


class Stream(FixedStream):
    def next_batch(self, size):
        _, counts = super().next_batch(size)
        return one_edit_away(), counts


@pytest.fixture(scope="module")
def search(policy_and_params):
    return make_search(policy_and_params[0], BUDGET)


@pytest.fixture(scope="module")
def searched(policy_and_params, search):
    tasks = one_edit_away()
    return search(policy_and_params[1], tasks, tasks.start, KEY)


def is_right(tasks, row, program):
    """By the plain interpreter, on all examples."""
    pairs = list(zip(np.asarray(program.op).tolist(), np.asarray(program.arg).tolist(), strict=True))
    for part in (tasks.public, tasks.hidden):
        inputs, targets = (
            jax.tree.map(lambda leaf: np.asarray(leaf[row]), leaf) for leaf in (part.inputs, part.targets)
        )
        for example in range(targets.type.shape[0]):
            pick = lambda value, *at: type(value)(*(leaf[at] for leaf in value))  # noqa: E731
            given = [reference.cell(pick(inputs, example, place)) for place in range(2)]
            output, _, _ = reference.run(pairs, given)
            if output != reference.cell(pick(targets, example)):
                return False
    return True


def test_a_solution_is_right_and_is_found_where_a_right_program_was_tried(searched):
    tasks, settings = one_edit_away(), vm.DEFAULT_SETTINGS
    found = solutions(searched, settings, "first")
    programs = unpack(searched.tried.key, settings)
    for row in range(COUNT):
        tried = int(searched.taken[row])
        right = [is_right(tasks, row, jax.tree.map(lambda leaf: leaf[row, at], programs)) for at in range(tried)]  # noqa: B023
        assert bool(found.known[row, 0]) == any(right)
        if any(right):
            assert is_right(tasks, row, jax.tree.map(lambda leaf: leaf[row, 0], found.program))  # noqa: B023
            assert right.index(True) == tried - 1  # the search ended there
    assert bool(found.known[0, 0]) and int(searched.taken[0]) == 1
    closed = solutions(searched, settings, "nearest")
    assert (np.diff((np.asarray(closed.program.op)[:, 0] == 0).astype(int), axis=1) >= 0).all()


def test_what_was_read_is_what_the_passes_count(searched):
    read = np.asarray(were_read(searched))
    np.testing.assert_array_equal(read.sum(axis=1), searched.passes)
    assert not read[0].any()  # the start was right: nothing to read


def test_states_are_sampled_from_what_was_tried_and_stand_for_all_of_it(searched):
    place, weight = sample_tried(searched, KEY, 5)
    assert (np.asarray(place) < np.asarray(searched.taken)[:, None]).all() and (np.asarray(place) >= 0).all()
    np.testing.assert_allclose(weight.sum(axis=1), searched.taken, rtol=1e-5)


def test_labels_lead_to_what_was_found(policy_and_params, search):
    policy, params = policy_and_params
    arm = value_search_arm(policy, search, Stream(), COUNT, SIZES, OPTIONS)
    visits, signals = arm.collect(params, params, KEY)
    assert visits.states.seen.op.shape == (COUNT, 6, 8)
    taught = np.asarray(visits.states.taught)
    assert taught[0].all() and (np.asarray(visits.states.distance)[0] == 0).all() and visits.states.solved[0].all()
    assert signals["search_solved"] == taught[:, 0].mean() and signals["oracle_labels"] == 0
    assert not np.asarray(visits.won)[~taught].any()
    value, terms = arm.loss(params, (visits, arm.share(visits)))
    assert np.isfinite(value) and float(terms["edit_loss"]) >= 0
    without = OPTIONS.weights._replace(edit=0.0, stop=0.0, distance=0.0)
    silent = value_search_arm(
        policy, search, Stream(), COUNT, SIZES, LabelOptions(echo_weight=0.0, value_weight=0.0, weights=without)
    )
    assert float(silent.loss(params, (visits, silent.share(visits)))[0]) == 0.0


def test_true_distances_are_the_oracles(searched):
    tasks, settings = one_edit_away(), vm.DEFAULT_SETTINGS
    true = np.asarray(true_distances(searched, tasks, settings, "first"))
    far = jax.vmap(lambda start, to: vm.oracle.distance(start, to, settings).distance)
    start = far(tasks.start, tasks.reference).tolist()
    assert true[:, 0].tolist() == start and start[0] == 0 and min(start[1:]) >= 1


def test_the_search_adds_to_what_rollouts_solve(policy_and_params, search):
    policy, params = policy_and_params
    play = make_play(policy, True)
    labels = LabelOptions(echo_weight=0.0)

    def signals(some):
        arm = expert_arm(policy, play, Stream(), COUNT, SIZES, CreditOptions("execution"), labels, some)
        return arm.collect(params, params, KEY)[1]

    alone, helped = signals(None), signals(search)
    assert "search_solved" not in alone
    assert helped["solved_tasks"] >= max(alone["solved_tasks"], helped["search_solved"])
    assert helped["executions"] > alone["executions"]
    assert helped["rollout_success"] == alone["rollout_success"]
