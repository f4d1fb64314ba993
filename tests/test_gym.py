"""The Gymnasium face of the environment, under Gymnasium's own checker and beside `vm.env`."""

import subprocess
import sys
import warnings

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import vm
from fuyu_jax.gym import RepairEnv
from vm import env

BUDGET = 5


@pytest.fixture(scope="module")
def tasks():
    return vm.make_tasks("val_mixed", 0, 8)


@pytest.fixture(scope="module")
def game(tasks):
    return RepairEnv(tasks, BUDGET)


def test_gymnasium_finds_nothing_wrong(game):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(game, skip_render_check=True)


def leaves(fields):
    """The arrays of nested dictionaries in the order of the named tuples they come from."""
    return [leaf for value in fields.values() for leaf in (leaves(value) if isinstance(value, dict) else [value])]


def test_episodes_equal_the_environment(game, tasks):
    source = np.random.default_rng(0)
    init, step, observe = jax.jit(env.init), jax.jit(env.step), jax.jit(env.observe)
    for task in range(len(tasks)):
        state = init(jax.tree.map(lambda leaf, task=task: leaf[task], tasks.arrays), BUDGET)
        seen, info = game.reset(options={"task": task})
        for action in [*source.integers(0, 481, 3), 481, 0, 5]:
            for got, right in zip(leaves(seen), jax.tree.leaves(observe(state)), strict=True):
                np.testing.assert_array_equal(got, right)
            np.testing.assert_array_equal(info["action_mask"], vm.valid_actions(state.program))
            assert (info["task"], info["prompt"]) == (task, tasks.prompts[task])
            assert (info["solved"], info["invalid"]) == (bool(state.solved), int(state.invalid))
            state = step(state, int(action))
            seen, reward, terminated, truncated, info = game.step(action)
            assert (reward, terminated, truncated) == (state.reward, state.terminated, state.truncated)


def test_stop_earns_one_on_a_solved_program_alone(game, tasks):
    earned = []
    for task in range(len(tasks)):
        solved = game.reset(options={"task": task})[1]["solved"]
        assert game.step(np.int64(0))[1:4] == (float(solved), True, False)
        earned.append(solved)
    assert sum(earned) == 1  # one start in eight is right


def test_another_reward(tasks):
    game = RepairEnv(tasks, BUDGET, reward=lambda before, after: -0.25 * (after.step - before.step))
    game.reset(seed=1)
    assert [game.step(action)[1] for action in (3, 481, 0, 3)] == [-0.25, -0.25, 0.0, 0.0]


def test_the_seed_decides_the_tasks(game, tasks):
    def drawn(seed):
        return [game.reset(seed=seed)[1]["task"], *(game.reset()[1]["task"] for _ in range(30))]

    assert drawn(3) == drawn(3) != drawn(4)
    assert set(drawn(3)) == set(range(len(tasks)))


@pytest.mark.parametrize("action", [-1, 481, 2**31, 2**40, -(2**40)])
def test_an_action_that_does_not_exist_is_an_invalid_edit(game, action):
    game.reset(options={"task": 2})
    with pytest.raises(ValueError, match="task 8 doesn't exist"):
        game.reset(options={"task": 8})  # the episode of task 2 goes on
    _, reward, terminated, _, info = game.step(action)
    assert (info["task"], info["invalid"], reward, terminated) == (2, 1, 0.0, False)


def test_bad_use_is_refused(game, tasks):
    with pytest.raises(ValueError, match="budget is 0; allow at least 1 edit"):
        RepairEnv(tasks, 0)
    for task in (8, -1):
        with pytest.raises(ValueError, match=f"task {task} doesn't exist; use 0 to 7"):
            game.reset(options={"task": task})
    with pytest.raises(gymnasium.error.ResetNeeded):
        RepairEnv(tasks).step(np.int64(1))


def test_without_gymnasium_only_this_module_is_missing():
    program = """
import sys
sys.modules["gymnasium"] = None
import vm.env, fuyu_jax.rollout
try:
    import fuyu_jax.gym
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "fuyu_jax.gym needs gymnasium; install it with: pip install 'fuyu-jax[gym]'"
