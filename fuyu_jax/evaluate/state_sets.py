"""The two fixed sets of held-out states on which phases are compared: the oracle's path, the copied policy's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fuyu_jax.evaluate.diagnostics import StateSet
from fuyu_jax.evaluate.measure import lane_keys
from fuyu_jax.learn.states import Teaching, label_states, oracle_states, spread_steps
from fuyu_jax.rollout import Episodes
from vm.oracle import Placement
from vm.tasks import TaskArrays
from vm.types import THREEFRY, Settings

STATES_A_TASK = 4
SEED = 0


def oracle_path_states(tasks: TaskArrays, settings: Settings, placement: Placement) -> StateSet:
    """States on the oracle's repairs of B tasks."""
    path_key, state_key = jax.random.split(jax.random.key(SEED, impl=THREEFRY))
    paths = lane_keys(path_key, jnp.arange(tasks.family.shape[0]), 1)[:, 0]
    return StateSet(tasks, oracle_states(tasks, paths, state_key, STATES_A_TASK, settings, Teaching(placement)))


def visited_states(
    tasks: TaskArrays, episodes: Episodes, budget: jax.Array, settings: Settings, placement: Placement
) -> StateSet:
    """States that the first of the episodes of each of B tasks passed through; budgets are int32 `[B, 1]`."""
    length = jnp.sum(episodes.active, axis=0)[:, 0]  # [B]
    keys = jax.random.split(jax.random.key(SEED, impl=THREEFRY), length.shape[0])
    step = jax.vmap(lambda key, count: spread_steps(key, count, STATES_A_TASK))(keys, length)  # [B, S]
    row = jnp.arange(length.shape[0], dtype=jnp.int32)[:, None]
    program = jax.tree.map(lambda leaf: leaf[step, row, 0], episodes.program)
    weight = jnp.broadcast_to((length > 0)[:, None], step.shape).astype(jnp.float32)
    action = episodes.action[step, row, 0]
    states = label_states(tasks, program, action, step, budget - step, weight, settings, placement)
    return StateSet(tasks, states)
