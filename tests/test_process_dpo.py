"""Arm `process_dpo`: which pairs it makes, against plain Python, and what its first updates do."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_sweeps import FixedStream, small_policy
from task_samples import LISTINGS, tasks

import vm
import vm.reference
from fuyu_jax.controller.distribution import NEVER, sample_distinct
from fuyu_jax.learn.arms.process_dpo import Pairs, PreferenceOptions, draw_pairs, pair_terms, process_dpo_arm, swap_half
from fuyu_jax.learn.credit import CreditOptions
from fuyu_jax.learn.experience import RolloutOptions, Visits
from fuyu_jax.learn.states import label_states
from fuyu_jax.learn.training import accumulated_gradient, start_training, take_step
from fuyu_jax.policy import make_play, make_score
from vm.types import THREEFRY

KEY = jax.random.key(11, impl=THREEFRY)
MACHINE = vm.DEFAULT_SETTINGS
FIELDS = len(vm.reference.NAMES) + MACHINE.args
OPTIONS = PreferenceOptions(pairs=4, beta=0.1, likelihood_weight=1.0, echo_weight=0.1)
DETOUR = vm.edits.encode_action("SET_OP", 0, 0, MACHINE)  # NOP: clears the slot's argument


def visits_of(some, programs):
    """One labelled decision of each task, at the given program."""
    count = len(some.family)
    ones = jnp.ones((count, 1), jnp.int32)
    program = jax.tree.map(lambda leaf: leaf[:, None], programs)
    states = label_states(some, program, 0 * ones, 0 * ones, 8 * ones, ones.astype(jnp.float32), MACHINE)
    return Visits(some, states, states.valid, states.solved)


@functools.cache
def starts():
    """The sample tasks at their starts; the second's reference wants argument 0 where its start has another."""
    some = tasks()
    put = lambda whole, row: jax.tree.map(lambda leaf, new: leaf.at[1].set(new), whole, row)  # noqa: E731
    some = some._replace(
        reference=put(some.reference, vm.assemble("FGT 0; SUM")), start=put(some.start, vm.assemble("MULI 2; SUM"))
    )
    return visits_of(some, some.start)


def distance_in_python(program, reference):
    """Fields to set: every wrong opcode, and every wrong argument that the wanted opcode reads."""
    total = 0
    for (op, arg), (want_op, want_arg) in zip(program, reference, strict=True):
        reads = vm.reference.NAMES[want_op] in vm.reference.READS_ARGUMENT
        total += (op != want_op) + (reads and arg != want_arg)
    return total


def apply_in_python(program, action):
    slot, field = divmod(action - 1, FIELDS)
    program = list(program)
    op, arg = program[slot]
    if field < len(vm.reference.NAMES):
        program[slot] = (field, arg if vm.reference.NAMES[field] in vm.reference.READS_ARGUMENT else 0)
    else:
        program[slot] = (op, field - len(vm.reference.NAMES))
    return program


def fields(program, row):
    return list(zip(program.op[row].ravel().tolist(), program.arg[row].ravel().tolist(), strict=True))


def log_probs_of(scores, visits):
    """A policy that stops with probability one half, and else is the softmax of scores over allowed edits."""
    inside = jnp.where(visits.allowed, scores, NEVER)
    edits = jnp.where(visits.allowed, jax.nn.log_softmax(inside, axis=-1) + jnp.log(0.5), NEVER)
    return jnp.concatenate([jnp.full((*scores.shape[:-1], 1), jnp.log(0.5)), edits], axis=-1)


def random_log_probs(visits, key):
    return log_probs_of(jax.random.normal(key, visits.allowed.shape), visits)


@pytest.mark.parametrize("number", range(3))
def test_pairs_are_a_repair_against_edits_that_do_not_help(number):
    visits = starts()
    key = jax.random.fold_in(KEY, number)
    pairs = draw_pairs(visits, random_log_probs(visits, key), key, 8, MACHINE)
    visits, pairs = jax.device_get((visits, pairs))
    assert pairs.counts.all()
    for row in range(len(LISTINGS)):
        program, reference = fields(visits.states.seen, row), fields(visits.tasks.reference, row)
        before = distance_in_python(program, reference)
        assert before == visits.states.distance[row, 0]
        winners, losers = pairs.winner[row, 0].tolist(), pairs.loser[row, 0].tolist()
        assert len(set(losers)) == len(losers)
        assert all(visits.allowed[row, 0, loser - 1] for loser in losers)
        if visits.states.solved[row, 0]:
            assert winners == [0] * 8
            continue
        assert all(visits.states.teacher[row, 0, winner - 1] for winner in winners)
        assert all(distance_in_python(apply_in_python(program, winner), reference) == before - 1 for winner in winners)
        assert all(distance_in_python(apply_in_python(program, loser), reference) >= before for loser in losers)


def test_an_edit_that_helps_is_no_loser_though_no_teacher_makes_it():
    """From `MULI 2` to `FGT 0`: an opcode without an argument clears the wrong one."""
    visits = starts()
    assert not visits.states.teacher[1, 0, DETOUR - 1]
    program, reference = fields(visits.states.seen, 1), fields(visits.tasks.reference, 1)
    assert distance_in_python(apply_in_python(program, DETOUR), reference) == visits.states.distance[1, 0] - 1
    scores = jnp.zeros(visits.allowed.shape).at[1, 0, DETOUR - 1].set(20.0)
    pairs = draw_pairs(visits, log_probs_of(scores, visits), KEY, 8, MACHINE)
    assert pairs.counts[1].all()
    assert not (pairs.loser[1] == DETOUR).any()


def test_no_pair_without_a_winner_or_a_loser():
    visits = starts()
    no_winner = visits._replace(allowed=visits.allowed & ~visits.states.teacher)
    pairs = draw_pairs(no_winner, random_log_probs(no_winner, KEY), KEY, 8, MACHINE)
    np.testing.assert_array_equal(pairs.counts[..., 0], visits.states.solved)
    some = jnp.argmax(visits.allowed & ~visits.states.teacher, axis=-1)[..., None]
    lone = jnp.arange(visits.allowed.shape[-1]).reshape(1, 1, -1) == some
    one_loser = visits._replace(allowed=visits.states.teacher | lone)
    pairs = draw_pairs(one_loser, random_log_probs(one_loser, KEY), KEY, 8, MACHINE)
    helps = np.array([[False], [True], [False], [False], [False]])  # there the first edit is the detour
    np.testing.assert_array_equal(pairs.counts.sum(axis=-1), ~helps)
    for actions in (pairs.winner, pairs.loser):
        np.testing.assert_array_equal(actions >= 0, pairs.counts)


def test_winners_and_losers_are_the_policys_own():
    """Two right edits three to one, and a wrong one that the policy likes best."""
    visits = starts()
    first, second = jnp.flatnonzero(visits.states.teacher[2, 0])[:2].tolist()
    bad = int(jnp.flatnonzero(visits.allowed[2, 0] & ~visits.states.teacher[2, 0])[-1])
    place = jnp.array([first, second, bad])
    scores = jnp.zeros(visits.allowed.shape).at[2, 0, place].set(jnp.array([15 + np.log(3), 15, 20]))
    log_probs = jnp.where(visits.states.teacher & (scores == 0), -15.0, scores)
    pairs = draw_pairs(visits, log_probs_of(log_probs, visits), KEY, 64, MACHINE)
    winners = np.asarray(pairs.winner[2, 0]) - 1
    assert set(winners.tolist()) == {first, second}
    assert abs(np.mean(winners == first) - 0.75) < 0.2
    assert pairs.loser[2, 0, 0] == bad + 1


def test_distinct_samples_have_the_probabilities_of_drawing_without_replacement():
    probs = np.array([0.5, 0.3, 0.2])
    allowed = jnp.array([True, True, True, False])
    log_probs = jnp.log(jnp.array([*probs, 1.0]))
    many = jnp.broadcast_to(log_probs, (20_000, 4)), jnp.broadcast_to(allowed, (20_000, 4))
    drawn = np.asarray(sample_distinct(KEY, *many, 4))
    assert (np.sort(drawn, axis=-1) == [-1, 0, 1, 2]).all() and (drawn[:, 3] == -1).all()
    for one in range(3):
        for two in {0, 1, 2} - {one}:
            share = np.mean((drawn[:, 0] == one) & (drawn[:, 1] == two))
            assert abs(share - probs[one] * probs[two] / (1 - probs[one])) < 0.015


def test_half_of_the_labels_are_swapped():
    counts = jnp.array([[[True, True, False], [True, True, True]]])
    winner = jnp.where(counts, jnp.arange(1, 7).reshape(1, 2, 3), -1)
    loser = jnp.where(counts, winner + 10, -1)
    swapped = swap_half(Pairs(winner, loser, counts), KEY)
    turned = swapped.winner == loser
    assert int((turned & counts).sum()) == 3
    np.testing.assert_array_equal(swapped.winner, jnp.where(turned, loser, winner))
    np.testing.assert_array_equal(swapped.loser, jnp.where(turned, winner, loser))
    np.testing.assert_array_equal(swapped.counts, counts)


@pytest.fixture(scope="module")
def policy_and_params():
    return small_policy()


@pytest.fixture(scope="module")
def arm_of(policy_and_params):
    """A function of options: the arm on the sample tasks."""
    policy, _ = policy_and_params
    play = make_play(policy, no_repeat=True)
    rollouts, credits = RolloutOptions(group=2, states=3), CreditOptions("terminal")
    return lambda options: process_dpo_arm(policy, play, FixedStream(), 6, rollouts, credits, options)


@pytest.fixture(scope="module")
def turn(policy_and_params, arm_of):
    _, params = policy_and_params
    with jax.debug_key_reuse(True):
        return arm_of(OPTIONS).collect(params, params, KEY)


def test_signals_tell_what_was_used(turn):
    rows, signals = turn
    assert signals["oracle_labels"] == 6 * 2 * 3
    assert signals["pairs"] == rows.pairs.counts.sum() > 0
    assert 0 <= float(signals["rank_accuracy"]) <= 1


def test_the_first_update_starts_at_log_two_beside_the_likelihood(policy_and_params, arm_of, turn):
    policy, params = policy_and_params
    rows, signals = turn
    log_probs = make_score(policy)(params, rows.visits.tasks, rows.visits.states.seen, rows.visits.allowed)
    share = arm_of(OPTIONS).share(rows).pairs
    terms = pair_terms(log_probs, rows, share, OPTIONS)
    assert terms["margin"] == terms["winner_gain"] == terms["loser_gain"] == 0
    counts, weight = np.asarray(rows.pairs.counts), np.asarray(rows.visits.states.weight)[..., None]
    weight = (counts * weight) / (counts * weight).sum()
    picked = np.take_along_axis(np.asarray(log_probs), np.maximum(rows.pairs.winner, 0), axis=-1)
    np.testing.assert_allclose(terms["policy_loss"], np.log(2) - (picked * weight).sum(), rtol=1e-5)


def test_the_control_swaps_labels_of_the_very_same_pairs(policy_and_params, arm_of, turn):
    _, params = policy_and_params
    rows, signals = turn
    swapped, control = arm_of(dataclasses.replace(OPTIONS, shuffle=True)).collect(params, params, KEY)
    turned = np.asarray(swapped.pairs.winner != rows.pairs.winner)
    assert 2 * turned.sum() in (signals["pairs"], signals["pairs"] + 1)
    np.testing.assert_array_equal(swapped.pairs.winner, np.where(turned, rows.pairs.loser, rows.pairs.winner))
    np.testing.assert_array_equal(swapped.pairs.loser, np.where(turned, rows.pairs.winner, rows.pairs.loser))
    assert control["rank_accuracy"] == signals["rank_accuracy"]  # of the labels before they are swapped


def test_updates_set_winners_above_losers(policy_and_params, arm_of, turn):
    """The preference alone, without the winner's likelihood."""
    _, params = policy_and_params
    rows, _ = turn
    arm = arm_of(dataclasses.replace(OPTIONS, likelihood_weight=0.0))
    ask = jax.jit(lambda params: accumulated_gradient(arm.loss, params, (rows, arm.share(rows)), 1))
    state = start_training(params)
    _, first = ask(state.params)
    for _ in range(8):
        gradient, last = ask(state.params)
        state, _ = take_step(state, gradient, jnp.float32(0.01))
    assert abs(float(first["margin"])) < 1e-7 < float(last["margin"])
    assert float(last["winner_gain"]) > float(last["loser_gain"])
    assert float(last["rank_accuracy"]) > float(first["rank_accuracy"])
    still, _ = take_step(state, gradient, jnp.float32(0.0))
    chex.assert_trees_all_equal(still.params, state.params)
