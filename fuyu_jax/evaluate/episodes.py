"""Episodes of the deployed policy with what it thought at every step: the content of `episodes.jsonl`.

The rollout is the one that measures the policy, in the same compiled function; `thoughts` reads its states again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuyu_jax.evaluate.measure import array_chunks, chunk_size, greedy, stop_times, to_lanes
from fuyu_jax.evaluate.metrics import BUDGET, HARD_BUDGET, HARD_SPLIT
from fuyu_jax.evaluate.narration import Heading, narrate
from fuyu_jax.evaluate.thoughts import make_think
from fuyu_jax.policy import Params, Play, Policy
from fuyu_jax.rollout import Episodes
from vm.grammar import FAMILIES
from vm.tasks import Tasks

MODE = "learned"
MOST_EPISODES = 100


def budget_of(split: str) -> int:
    """The edit budget K at which a split's episodes are shown: that of `accuracy_at_budget`."""
    return HARD_BUDGET if split == HARD_SPLIT else BUDGET


def chosen_tasks(splits: Mapping[str, Tasks], most: int = MOST_EPISODES) -> list[tuple[str, int]]:
    """Which tasks are shown: the first `most // number of splits` of each split, in the order of the splits."""
    each = most // len(splits)
    return [(split, row) for split, tasks in splits.items() for row in range(min(each, len(tasks)))]


def record_episodes(
    policy: Policy, play: Play, params: Params, splits: Mapping[str, Tasks], lanes: int, phase: str
) -> list[dict[str, Any]]:
    """The deployed policy's episodes on the chosen tasks of each split: argmax, learned mode, plain data.

    Args:
      policy: for prompts of any split.
      play: its episodes.
      params: its parameters.
      splits: the evaluation tasks.
      lanes: how many lanes `play` is compiled for; all of them play the same.
      phase: the policy's name.
    """
    think = make_think(policy)
    chosen = chosen_tasks(splits)
    counts = {split: sum(name == split for name, _ in chosen) for split in splits}
    parts = [jax.tree.map(lambda leaf, n=counts[name]: leaf[:n], tasks.arrays) for name, tasks in splits.items()]
    arrays = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    budgets = jnp.asarray([budget_of(split) for split, _ in chosen], jnp.int32)
    records = []
    size = chunk_size(max(len(tasks) for tasks in splits.values()))  # as where they are measured
    for rows, (tasks, budget) in array_chunks((arrays, budgets), len(chosen), size):
        roll = greedy(play, params)
        episodes = roll(tasks, jnp.broadcast_to(budget[:, None], (size, lanes)), jnp.arange(size))
        thoughts = think(params, tasks, episodes, budget)
        first = jax.tree.map(lambda leaf: leaf[:, :, 0], episodes)
        tasks, first, thoughts = jax.device_get((tasks, first, thoughts))
        ends = _ends(episodes, np.asarray(budget), tasks.public.targets.type.shape[1])
        for row, (split, task) in enumerate(chosen[rows]):
            family = FAMILIES[int(tasks.family[row])]
            heading = Heading(phase, split, task, splits[split].prompts[task], family, int(budget[row]), MODE)
            records.append(narrate(heading, row, *ends[row], tasks, first, thoughts, settings=policy.settings))
    return records


def _ends(episodes: Episodes, budgets: np.ndarray, public: int) -> list[tuple[int, bool]]:
    """After how many edits the first lane of each episode ends in the learned mode, and whether by STOP."""
    lanes = to_lanes(episodes, 0, public)
    ends = {int(budget): stop_times(lanes, int(budget), MODE) for budget in np.unique(budgets)}
    return [(int(ends[budget][0][row]), bool(ends[budget][1][row])) for row, budget in enumerate(budgets.tolist())]
