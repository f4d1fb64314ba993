"""Episodes under every family of tasks: jit = eager = a row of the vmap = a model in plain Python."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_judge import cells_of, examples_of, pairs_of
from task_samples import tasks as sample_tasks
from test_edits import model as edit_model

import vm
from vm import env, oracle, reference
from vm.observation import Observation

STEPS = 8
FAMILIES = range(len(vm.FAMILIES))
BUDGETS = (8, 5, 0, 7)
SCRIPTS = 3  # for each family: a repair with STOP behind it, anything that may come, edits without STOP


def row(tree, *at):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[at], tree)


@functools.cache
def family_tasks():
    """One task of each family that its start program does not solve, three times over: `[3 * families]`."""
    arrays = vm.make_tasks("val_mixed", 0, 64, start="corrupted").arrays
    first = [int(np.argmax(np.asarray(arrays.family) == family)) for family in FAMILIES]
    assert np.asarray(arrays.family)[first].tolist() == list(FAMILIES)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[np.repeat(first, SCRIPTS)], arrays)


@functools.cache
def script():
    """Actions int32 `[3 * families, 8]` and budgets."""
    source = np.random.default_rng(0)
    tasks = family_tasks()
    count = len(tasks.family)
    keys = jax.random.split(jax.random.key(0), count)
    actions = np.array(jax.vmap(lambda *task: oracle.repair(*task, STEPS))(tasks.start, tasks.reference, keys).actions)
    anything = np.concatenate([source.integers(-3, 485, 60), [-(2**31), 2**31 - 1, 481]])
    actions[1::3] = source.choice(anything, (count // 3, STEPS))
    actions[1::6, 3] = 0  # a STOP among them, most likely a false one
    actions[2::3] = source.integers(1, 481, (count // 3, STEPS))
    return actions.astype(np.int32), np.resize(BUDGETS, count).astype(np.int32)


@functools.cache
def path():
    """Every state of every episode, `State[9, T]`, from one scan over mapped steps."""
    actions, budgets = script()

    @jax.jit
    def play(tasks, budgets, actions):
        first = jax.vmap(env.init)(tasks, budgets)

        def body(state, action):
            after = jax.vmap(env.step)(state, action)
            return after, after

        rest = jax.lax.scan(body, first, actions.T)[1]
        return jax.tree.map(lambda start, later: jnp.concatenate([start[None], later]), first, rest)

    return play(family_tasks(), budgets, actions)


class Model:
    """An episode in plain Python."""

    def __init__(self, task, budget):
        self.pairs = pairs_of(task.start)
        self.inputs = examples_of(task.public.inputs) + examples_of(task.hidden.inputs)
        self.targets = cells_of(task.public.targets) + cells_of(task.hidden.targets)
        self.step, self.budget, self.invalid, self.reward = 0, int(budget), 0, 0.0
        self.terminated, self.truncated = False, budget == 0

    def act(self, action):
        self.reward = 0.0
        if self.terminated or self.truncated:
            return
        if action == 0:
            self.terminated = True
        else:
            self.pairs, valid = edit_model(self.pairs, action, vm.DEFAULT_SETTINGS)
            self.step, self.budget, self.invalid = self.step + 1, self.budget - 1, self.invalid + (not valid)
            self.truncated = self.budget == 0
        if (self.terminated or self.truncated) and all(self.right()):
            self.reward = 1.0

    def results(self):
        return [reference.run(self.pairs, example) for example in self.inputs]

    def right(self):
        return [output == target for (output, _, _), target in zip(self.results(), self.targets, strict=True)]

    def check(self, state):
        assert pairs_of(state.program) == self.pairs
        outputs, statuses, pcs = zip(*self.results(), strict=True)
        assert cells_of(state.results.output) == list(outputs)
        assert state.results.status.tolist() == list(statuses) and state.results.pc.tolist() == list(pcs)
        assert state.right.tolist() == self.right() and bool(state.solved) == all(self.right())
        for name in ("step", "budget", "invalid", "reward", "terminated", "truncated"):
            assert getattr(state, name) == getattr(self, name), name

    def check_observation(self, seen):
        assert pairs_of(vm.Program(seen.op, seen.arg)) == self.pairs
        assert examples_of(seen.inputs) == self.inputs[:4]
        outputs, statuses, _ = zip(*self.results()[:4], strict=True)
        assert cells_of(seen.outputs) == list(outputs) and seen.status.tolist() == list(statuses)
        (_, _, pc), tops = reference.trace(self.pairs, self.inputs[0])
        assert cells_of(seen.tops) == tops
        assert (seen.pc, seen.step, seen.budget) == (pc, self.step, self.budget)


@pytest.mark.parametrize("task", range(SCRIPTS * len(vm.FAMILIES)))
def test_a_row_of_the_vmap_equals_the_model(task):
    actions, budgets = script()
    episode = Model(row(family_tasks(), task), budgets[task])
    episode.check(row(path(), 0, task))
    for t, action in enumerate(actions[task].tolist()):
        episode.act(action)
        episode.check(row(path(), t + 1, task))


def test_the_scripts_meet_every_ending():
    last = row(path(), -1)
    solved = np.asarray(last.solved)
    assert (last.terminated & solved).any() and (last.terminated & ~solved).any()
    assert (last.truncated & ~solved).any() and (last.invalid > 0).any()
    assert not (last.terminated & last.truncated).any()
    assert np.asarray(path().reward).sum() == (last.done & solved & (last.step > 0)).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_jit_and_eager_equal_a_row_of_the_vmap(family):
    actions, budgets = script()
    task = SCRIPTS * family + family % SCRIPTS
    compiled = jax.jit(env.step)
    start = jax.tree.map(lambda leaf: leaf[task], family_tasks())
    for first in (env.init(start, budgets[task]), jax.jit(env.init)(start, budgets[task])):
        chex.assert_trees_all_equal(first, row(path(), 0, task))
    jitted = eager = first
    for t in range(STEPS):
        jitted = compiled(jitted, actions[task, t])
        chex.assert_trees_all_equal(jitted, row(path(), t + 1, task))
        if t < 2:
            eager = env.step(eager, int(actions[task, t]))
            chex.assert_trees_all_equal(eager, row(path(), t + 1, task))


def test_observations_equal_the_model():
    actions, budgets = script()
    seen = jax.jit(jax.vmap(jax.vmap(env.observe)))(path())
    assert isinstance(seen, Observation)
    for task in range(0, len(budgets), 2):
        episode = Model(row(family_tasks(), task), budgets[task])
        episode.check_observation(row(seen, 0, task))
        for t, action in enumerate(actions[task].tolist()):
            episode.act(action)
            episode.check_observation(row(seen, t + 1, task))


def three_steps():
    """A task that is two edits from right, and actions: both edits, STOP, and five that come too late."""
    task = row(sample_tasks(), 2)
    edits = oracle.repair(task.start, task.reference, jax.random.key(0), 2).actions.tolist()
    return task, jnp.array([*edits, 0, 7, 0, 99, 9999, 0], jnp.int32)


def test_an_episode_of_three_steps_in_a_scan_of_eight():
    task, actions = three_steps()

    def body(state, action):
        after = env.step(state, action)
        return after, after

    last, states = jax.lax.scan(body, env.init(task, 8), actions)
    assert states.reward.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert states.terminated.tolist() == [False, False] + [True] * 6
    assert not states.truncated.any()
    end = row(states, 2)
    assert (int(end.step), int(end.budget), int(end.invalid)) == (2, 6, 0)
    assert vm.disassemble(end.program) == "TAKE 2; MAXL"
    chex.assert_trees_all_equal(last, end._replace(reward=np.float32(0)))


def test_what_is_recorded_is_the_state_before_the_reset():
    task, actions = three_steps()
    tasks = jax.tree.map(lambda leaf: leaf[None], task)

    def body(state, inputs):
        action, key = inputs
        after = env.step(state, action)
        fresh = env.reset(key, tasks, 4)
        return jax.tree.map(lambda old, new: jnp.where(after.done, new, old), after, fresh), after

    keys = jax.random.split(jax.random.key(1), STEPS)
    _, states = jax.lax.scan(body, env.init(task, 8), (actions, keys))
    assert bool(states.solved[2]) and states.step.tolist() == [1, 2, 2, 1, 1, 1, 2, 2]
    assert states.reward.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert states.terminated.tolist() == [False, False, True, False, True, False, False, True]
    assert states.budget.tolist() == [7, 6, 6, 3, 3, 3, 2, 2]
    assert states.invalid.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_the_last_edit_of_the_budget_truncates_and_may_solve():
    task, actions = three_steps()
    state = env.step(env.step(env.init(task, 2), actions[0]), actions[1])
    assert bool(state.truncated) and not bool(state.terminated) and bool(state.solved) and float(state.reward) == 1.0
    after = env.step(state, 0)
    assert bool(after.truncated) and not bool(after.terminated) and float(after.reward) == 0.0


@pytest.mark.parametrize("budget", [0, -3])
def test_without_a_budget_the_episode_is_over_at_once(budget):
    state = env.init(three_steps()[0], budget)
    assert bool(state.truncated) and int(state.budget) == 0


def test_init_and_step_return_the_same_tree():
    task, actions = three_steps()
    first = env.init(task, 8)
    chex.assert_trees_all_equal_shapes_and_dtypes(
        first, env.step(first, 5), env.reset(jax.random.key(0), sample_tasks(), 8)
    )
    assert [leaf.weak_type for leaf in jax.tree.leaves(env.step(first, 5))] == [False] * len(jax.tree.leaves(first))


def test_another_reward_is_not_credited_after_the_end():
    task, actions = three_steps()

    def body(state, action):
        after = env.step(state, action, reward=lambda before, after: 1.0 + after.step.astype(jnp.float32))
        return after, after.reward

    assert jax.lax.scan(body, env.init(task, 8), actions)[1].tolist() == [2, 3, 3, 0, 0, 0, 0, 0]


def test_reset_draws_every_task_from_its_key_alone():
    tasks = sample_tasks()
    keys = jax.random.split(jax.random.key(0), 400)
    some = jax.jit(jax.vmap(lambda key: env.reset(key, tasks, 3)))(keys)
    chex.assert_trees_all_equal(row(some, 17), env.reset(keys[17], tasks, 3))
    drawn = {tuple(op) for op in np.concatenate([some.program.op, some.public.inputs.words[:, 0, 0]], 1).tolist()}
    assert len(drawn) == len(tasks.family)


def test_two_calls_trace_once():
    task, actions = three_steps()
    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(lambda state, action: env.step(state, action), n=1))
    state = step(step(env.init(task, 8), actions[0]), actions[1])
    assert int(state.step) == 2


def test_wrong_shapes_are_refused():
    task, _ = three_steps()
    with pytest.raises(AssertionError):
        env.init(sample_tasks(), 8)
    with pytest.raises(AssertionError):
        env.step(env.init(task, 8), jnp.zeros(2, jnp.int32))
