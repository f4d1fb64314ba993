"""Arm `awr`: values of actions against rollouts in plain Python, and the better policy by hand."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_sweeps import FixedStream, small_policy
from task_samples import LISTS, tasks

import vm
import vm.reference
from fuyu_jax.controller.distribution import NEVER
from fuyu_jax.learn.arms.awr import (
    Evaluated,
    RegressionOptions,
    awr_arm,
    better_policy,
    choose_edits,
    edit_values,
    place_values,
)
from fuyu_jax.learn.credit import CreditOptions
from fuyu_jax.learn.experience import RolloutOptions
from fuyu_jax.learn.losses.policy_gradient import exact_kl
from fuyu_jax.learn.training import accumulated_gradient, start_training, take_step
from fuyu_jax.policy import make_play
from vm.observation import observe, run_all
from vm.types import THREEFRY

KEY = jax.random.key(13, impl=THREEFRY)
MACHINE = vm.DEFAULT_SETTINGS
OPCODES = len(vm.reference.NAMES)
OPTIONS = RegressionOptions(actions=3, samples=1, nats=0.05, kl_weight=0.1, echo_weight=0.1)
SORT = vm.reference.NAMES.index("SORT")


@pytest.fixture(scope="module")
def policy_and_params():
    return small_policy()


@pytest.fixture(scope="module")
def play(policy_and_params):
    return make_play(policy_and_params[0], no_repeat=True)


def apply_in_python(program, action):
    """Programs are tuples of (opcode, argument)."""
    slot, field = divmod(action - 1, OPCODES + MACHINE.args)
    op, arg = program[slot]
    if field < OPCODES:
        new = (field, arg if vm.reference.NAMES[field] in vm.reference.READS_ARGUMENT else 0)
    else:
        new = (op, field - OPCODES)
    return (*program[:slot], new, *program[slot + 1 :])


def solved_in_python(program, reference):
    said = [[vm.reference.run(some, [x, None])[0] for x in LISTS] for some in (program, reference)]
    return said[0] == said[1]


def fields(program, row):
    return tuple(zip(program.op[row].tolist(), program.arg[row].tolist(), strict=True))


def make_look(policy, params):
    """A function of a task's row, a program, and step and budget: the heads' logits, and the valid edits."""

    @jax.jit
    def look(task, program, step, budget):
        results = run_all(program, task.public.inputs, MACHINE)
        seen = observe(program, task.public.inputs, results, step, budget, MACHINE)
        one = jax.tree.map(lambda leaf: leaf[None], task)
        readout = policy.reader(params, one)[1](jax.tree.map(lambda leaf: leaf[None, None], seen))
        return readout.edit_logits[0, 0], readout.stop_logit[0, 0], vm.valid_actions(program, MACHINE)[1:]

    def of(row, program, step, budget):
        task = jax.tree.map(lambda leaf: leaf[row], tasks())
        numbers = vm.Program(*(jnp.array(column, jnp.int32) for column in zip(*program, strict=True)))
        return jax.device_get(look(task, numbers, jnp.int32(step), jnp.int32(budget)))

    return of


def rollout_in_python(look, row, program, budget, key):
    """A sampled episode: STOP by a coin, else an edit by Gumbel noise, none twice in the same program."""
    tried = set()
    for step in range(budget):
        logits, stop_logit, valid = look(row, program, step, budget - step)
        if jax.random.uniform(jax.random.fold_in(key, 2 * step + 1)) < 1 / (1 + math.exp(-stop_logit)):
            break
        scores = logits + np.asarray(jax.random.gumbel(jax.random.fold_in(key, 2 * step), logits.shape))
        action = 1 + max(
            (edit for edit in range(len(scores)) if valid[edit] and (program, edit + 1) not in tried),
            key=lambda edit: scores[edit],
        )
        tried.add((program, action))
        program = apply_in_python(program, action)
    return program


def test_values_of_edits_are_those_of_rollouts_in_python(policy_and_params, play):
    """From a right program: a second SORT leaves it right, a REV does not. And from a program one edit away."""
    policy, params = policy_and_params
    some = jax.tree.map(lambda leaf: leaf[:2], tasks())
    set_op = lambda slot, name: vm.edits.encode_action("SET_OP", slot, vm.reference.NAMES.index(name), MACHINE)  # noqa: E731
    edits = jnp.array(
        [
            [[set_op(5, "SORT"), set_op(7, "REV")]],
            [[vm.edits.encode_action("SET_ARG", 0, 3, MACHINE), set_op(0, "REV")]],
        ]
    )
    budget, samples = jnp.array([[4], [2]]), 3
    program = jax.tree.map(lambda leaf: leaf[:, None], some.start)
    values, executions = edit_values(play, params, some, program, edits, budget, KEY, samples, MACHINE)

    look, keys = make_look(policy, params), jax.random.split(KEY, (2, 2 * samples))
    wins = np.zeros(edits.shape)
    for row in range(2):
        start, reference = fields(some.start, row), fields(some.reference, row)
        for lane in range(2 * samples):
            edited = apply_in_python(start, int(edits[row, 0, lane // samples]))
            end = rollout_in_python(look, row, edited, int(budget[row, 0]) - 1, keys[row, lane])
            wins[row, 0, lane // samples] += solved_in_python(end, reference)
    np.testing.assert_allclose(values, wins / samples)
    assert (wins[:, 0, 0] > 0).all(), "the two right edits lead to a right end at times"
    assert wins.sum() < wins.size * samples
    examples = some.public.targets.type.shape[1] + some.hidden.targets.type.shape[1]
    decisions = int(executions) / examples - 4 * samples
    assert decisions == int(decisions) and 4 * samples <= decisions <= 2 * samples * (3 + 1)


def test_an_edit_with_the_last_of_the_budget_is_judged_at_once(policy_and_params, play):
    """Nobody plays on, so the value is exactly whether the edited program is right."""
    _, params = policy_and_params
    some = jax.tree.map(lambda leaf: leaf[:2], tasks())
    edits = jnp.array([[[vm.edits.encode_action("SET_OP", 5, SORT, MACHINE), 1]], [[1, 2]]])
    program = jax.tree.map(lambda leaf: leaf[:, None], some.start)
    values, _ = edit_values(play, params, some, program, edits, jnp.ones((2, 1), jnp.int32), KEY, 3, MACHINE)
    np.testing.assert_array_equal(values, [[[1.0, 0.0]], [[0.0, 0.0]]])


def test_edits_are_different_ones_of_the_policy():
    allowed = jnp.zeros((1, 40, 10), bool).at[..., jnp.array([1, 4, 8])].set(True)
    log_probs = jnp.where(jnp.arange(11).reshape(1, 1, -1) == 5, -0.01, -9.0) + jnp.zeros((1, 40, 1))
    edits = np.asarray(choose_edits(log_probs, allowed, KEY, 4))
    assert (np.sort(edits, axis=-1) == [-1, 2, 5, 9]).all()
    assert np.mean(edits[..., 0] == 5) > 0.9


def test_stop_is_worth_exactly_whether_the_program_is_solved():
    edits = jnp.array([[[3, 1], [2, -1]]])
    evaluated = place_values(edits, jnp.array([[[0.25, 1.0], [0.5, 0.75]]]), jnp.array([[True, False]]), 5)
    np.testing.assert_array_equal(evaluated.values, [[[1, 1, 0, 0.25, 0], [0, 0, 0.5, 0, 0]]])
    np.testing.assert_array_equal(evaluated.known, [[[1, 1, 0, 1, 0], [1, 0, 1, 0, 0]]])


PROBS = np.array([[[0.1, 0.2, 0.3, 0.4, 0.0], [0.5, 0.2, 0.2, 0.1, 0.0]]])
LOG_PROBS = jnp.where(PROBS > 0, jnp.log(jnp.maximum(PROBS, 1e-9)), NEVER).astype(jnp.float32)
KNOWN = jnp.array([[[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]], bool)
VALUES = jnp.array([[[0.0, 1.0, 0.0, 9.0, 9.0], [0.5, 0.5, 9.0, 9.0, 9.0]]])


def test_the_better_policy_by_hand():
    """In the first state the second of three actions wins; in the second nothing tells the actions apart."""
    target, found = better_policy(LOG_PROBS, Evaluated(VALUES, KNOWN), jnp.ones((1, 2)), KEY, nats=0.05)
    raised = PROBS[0, 0, :3] * np.exp(np.array([0.0, 1.0, 0.0]) / float(found["beta"]))
    by_hand = [*(0.6 * raised / raised.sum()), 0.4, 0.0]
    np.testing.assert_allclose(jnp.exp(target[0, 0]), by_hand, rtol=1e-4)
    np.testing.assert_array_equal(target[0, 1], LOG_PROBS[0, 1])
    p = np.array(by_hand[:4])
    kl = 0.5 * float(np.sum(p * np.log(p / PROBS[0, 0, :4])))
    assert abs(kl - 0.05) < 1e-4 and float(found["target_kl"]) <= 0.05 + 1e-6
    np.testing.assert_allclose(found["target_kl"], kl, rtol=1e-3)
    assert found["action_spread"] == 0.5


def test_the_control_permutes_advantages_among_the_actions_of_a_state():
    """The winner's advantage goes to another action, at the same distance from the policy."""
    weight = jnp.ones((1, 2))
    target, found = better_policy(LOG_PROBS, Evaluated(VALUES, KNOWN), weight, KEY, nats=0.02, shuffle=True)
    assert target[0, 0, 1] < LOG_PROBS[0, 0, 1]
    assert (target[0, 0, :3] > LOG_PROBS[0, 0, :3]).any()
    np.testing.assert_allclose(found["target_kl"], 0.02, rtol=1e-3)
    np.testing.assert_array_equal(target[0, 1], LOG_PROBS[0, 1])


@pytest.fixture(scope="module")
def arm(policy_and_params, play):
    policy, _ = policy_and_params
    rollouts = RolloutOptions(group=2, states=2)
    return awr_arm(policy, play, FixedStream(), 6, rollouts, CreditOptions("terminal"), OPTIONS)


@pytest.fixture(scope="module")
def turn(policy_and_params, arm):
    _, params = policy_and_params
    with jax.debug_key_reuse(True):
        return arm.collect(params, params, KEY)


def test_no_oracle_is_asked(turn):
    rows, signals = turn
    assert signals["oracle_labels"] == 0
    assert not rows.visits.states.taught.any() and not rows.visits.states.teacher.any()
    solved = np.asarray(rows.visits.states.solved)
    assert solved.any() and not solved.all()


def test_the_target_is_within_the_trust_region_and_some_states_are_told_apart(turn):
    rows, signals = turn
    weight = np.asarray(rows.visits.states.weight)
    kl = np.asarray(exact_kl(rows.target, rows.reference))  # the policy of this turn is the copied one
    assert float(signals["action_spread"]) > 0
    assert 0 < (kl * weight).sum() / weight.sum() <= OPTIONS.nats * (1 + 1e-3)
    np.testing.assert_allclose(jnp.exp(rows.target).sum(axis=-1), 1.0, rtol=1e-4)
    assert signals["executions"] > 6 * 2 * 2 * OPTIONS.actions * 6  # at least the edited programs on all examples


def test_updates_lead_to_the_target(policy_and_params, play, arm, turn):
    """A target that stops more often, everywhere."""
    policy, params = policy_and_params
    rows, _ = turn
    everywhere = jnp.ones(rows.target.shape, bool)
    worth = Evaluated(jnp.zeros(rows.target.shape).at[..., 0].set(1.0), everywhere)
    target, _ = better_policy(rows.reference, worth, rows.visits.states.weight, KEY, nats=0.2)
    rows = rows._replace(target=target)
    alone = dataclasses.replace(OPTIONS, kl_weight=0.0, policy_weight=20.0)
    some = awr_arm(policy, play, FixedStream(), 6, RolloutOptions(2, 2), CreditOptions("terminal"), alone)
    ask = jax.jit(lambda params: accumulated_gradient(some.loss, params, (rows, arm.share(rows)), 1))
    state = start_training(params)
    _, first = ask(state.params)
    for _ in range(8):
        gradient, last = ask(state.params)
        state, _ = take_step(state, gradient, jnp.float32(0.003))
    np.testing.assert_allclose(first["policy_loss"], 0.2, rtol=1e-3)
    assert float(last["policy_loss"]) < 0.1
    assert first["edit_loss"] == first["distance_loss"] == 0 < float(first["stop_loss"])
    assert abs(float(first["kl_loss"])) < 1e-6 < float(last["kl_loss"])
    still, _ = take_step(state, gradient, jnp.float32(0.0))
    chex.assert_trees_all_equal(still.params, state.params)
