"""The environment `vm.env` for Gymnasium: one task at a time, host arrays in and out.

Gymnasium is an extra (`pip install 'fuyu-jax[gym]'`) and nothing else imports this module. To train on many tasks at
once, use `vm.env` itself under `jax.vmap`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

import vm
from vm import env
from vm.observation import Observation
from vm.tasks import TaskArrays, Tasks

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise ImportError("fuyu_jax.gym needs gymnasium; install it with: pip install 'fuyu-jax[gym]'") from error

INT32 = np.iinfo(np.int32)

Fields = dict[str, Any]  # arrays by name, nested as `Observation` is


class _Seen(NamedTuple):
    """A state, what a policy sees of it, and which actions are valid, bool `[N]`."""

    state: env.State
    observation: Observation
    mask: jax.Array


def _look(state: env.State, settings: vm.Settings) -> _Seen:
    return _Seen(state, env.observe(state, settings), vm.valid_actions(state.program, settings))


@functools.partial(jax.jit, static_argnames="settings")
def _first(task: TaskArrays, budget: jax.Array, settings: vm.Settings) -> _Seen:
    return _look(env.init(task, budget, settings), settings)


@functools.partial(jax.jit, static_argnames=("settings", "reward"))
def _advance(state: env.State, action: jax.Array, settings: vm.Settings, reward: env.Reward) -> _Seen:
    return _look(env.step(state, action, settings, reward), settings)


class RepairEnv(gymnasium.Env[Fields, np.int64]):
    """Repair a program, one edit a step.

    Observations are the fields of `vm.observation.Observation` as nested dictionaries of int32 arrays; actions are
    numbered as in `vm.edits`, 0 is STOP. The reward is 1 when the episode ends with a program that solves the task.

    Each `info` holds `task` (index among the tasks), `prompt`, `action_mask` (int8 `[N]`, for
    `action_space.sample(mask)`), `solved`, and `invalid`, the number of invalid edits so far.
    """

    def __init__(
        self,
        tasks: Tasks,
        budget: int = 8,
        reward: env.Reward = env.solved_at_end,
        settings: vm.Settings = vm.DEFAULT_SETTINGS,
    ) -> None:
        """An environment over some tasks.

        Args:
          tasks: from `vm.make_tasks`; each `reset` draws one of them, or takes that of `options={"task": index}`.
          budget: edits allowed in an episode.
          reward: what an action earns, see `vm.env`.
          settings: the machine's sizes.

        Raises:
          ValueError: where the budget is below 1.
        """
        if budget < 1:
            raise ValueError(f"budget is {budget}; allow at least 1 edit.")
        self._tasks = tasks
        self._rows = jax.tree.map(np.asarray, tasks.arrays)
        self._budget, self._reward, self._settings = budget, reward, settings
        self._state: env.State | None = None
        self._task = 0
        self.action_space = spaces.Discrete(settings.num_actions)
        self.observation_space = _space(jax.eval_shape(lambda: self._begin(0)).observation)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Fields, Fields]:
        """Begin an episode; see `gymnasium.Env.reset`.

        Raises:
          ValueError: where the options name a task that doesn't exist.
        """
        super().reset(seed=seed)
        index = (options or {}).get("task")
        task = int(self.np_random.integers(len(self._tasks)) if index is None else index)
        if not 0 <= task < len(self._tasks):
            raise ValueError(f"task {task} doesn't exist; use 0 to {len(self._tasks) - 1}.")
        self._task = task
        return self._show(self._begin(task))

    def step(self, action: np.int64) -> tuple[Fields, float, bool, bool, Fields]:
        """Take an action; see `gymnasium.Env.step`. Any integer outside the action space is an invalid edit.

        Raises:
          gymnasium.error.ResetNeeded: before the first `reset`.
        """
        if self._state is None:
            raise gymnasium.error.ResetNeeded("there is no episode yet; call reset() first.")
        number = np.int32(action if INT32.min <= action <= INT32.max else -1)
        seen = _advance(self._state, number, self._settings, self._reward)
        observation, info = self._show(seen)
        return observation, float(self._state.reward), bool(self._state.terminated), bool(self._state.truncated), info

    def _begin(self, index: int) -> _Seen:
        return _first(jax.tree.map(lambda leaf: leaf[index], self._rows), np.int32(self._budget), self._settings)

    def _show(self, seen: _Seen) -> tuple[Fields, Fields]:
        """Keep the new state; hand out the observation and what goes with it."""
        self._state = seen.state
        info = {
            "task": self._task,
            "prompt": self._tasks.prompts[self._task],
            "action_mask": np.asarray(seen.mask, np.int8),
            "solved": bool(seen.state.solved),
            "invalid": int(seen.state.invalid),
        }
        return _fields(seen.observation), info


def _fields(tree: Any) -> Any:
    """Named tuples as dictionaries, arrays as host arrays."""
    if hasattr(tree, "_asdict"):
        return {name: _fields(leaf) for name, leaf in tree._asdict().items()}
    return np.array(tree)


def _space(tree: Any) -> spaces.Space:
    """The space of the dictionaries that `_fields` makes from trees of int32 arrays with these shapes."""
    if hasattr(tree, "_asdict"):
        return spaces.Dict({name: _space(leaf) for name, leaf in tree._asdict().items()})
    return spaces.Box(INT32.min, INT32.max, tree.shape, np.int32)
