"""Measuring a policy: one argmax rollout a budget, from which every way of stopping is read off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.policy import Params, Play
from fuyu_jax.rollout import Episodes, repeat_lanes
from vm.tasks import TaskArrays, Tasks
from vm.types import THREEFRY

MODES = ("forced", "learned", "value_gated", "verified")
CHUNK = 64  # most tasks in one compiled call
EVALUATION_SEED = 0  # data seed of the evaluation tasks: always the same ones


class Labels(NamedTuple):
    """The columns of `outcomes.csv` that say whose rows they are."""

    arm: str
    phase: str
    seed: int


Roll = Callable[[TaskArrays, jax.Array, jax.Array], Episodes]  # B tasks, budgets [B, G], task indices [B]


def greedy(play: Play, params: Params) -> Roll:
    """Argmax episodes of one policy."""

    def best(tasks: TaskArrays, budget: jax.Array, index: jax.Array) -> Episodes:
        keys = lane_keys(jax.random.key(0, impl=THREEFRY), index, budget.shape[1])
        return play(params, tasks, repeat_lanes(tasks.start, budget.shape[1]), budget, keys, jnp.asarray(False))

    return best


def lane_keys(key: jax.Array, index: jax.Array, lanes: int) -> jax.Array:
    """A key for each lane of each task, from the task's index alone: typed keys `[B, G]`."""
    return jax.vmap(lambda task: jax.random.split(jax.random.fold_in(key, task), lanes))(index)


def chunk_size(tasks: int) -> int:
    """How many of some tasks one compiled call takes: the power of two that holds them, `CHUNK` at most.

    Numbers may depend on the shape of a batch in their last bits, so who measures again takes the first size.
    """
    return min(CHUNK, 1 << (tasks - 1).bit_length())


def chunks(tasks: Tasks, size: int | None = None) -> list[tuple[slice, TaskArrays]]:
    """The tasks in parts of one size, that of `chunk_size` if none is given, as `array_chunks` has them."""
    return array_chunks(tasks.arrays, len(tasks), size or chunk_size(len(tasks)))


def array_chunks(arrays: Any, count: int, size: int) -> list[tuple[slice, Any]]:
    """A tree of arrays `[count, ...]` in parts of one size; the last is filled up with its own rows again.

    So nothing recompiles. Each part comes with the slice of the rows that it holds first.
    """
    parts = []
    for first in range(0, count, size):
        rows = np.arange(first, first + size)
        rows = first + (rows - first) % (count - first)
        part = jax.tree.map(lambda leaf, rows=rows: leaf[rows], arrays)
        parts.append((slice(first, min(first + size, count)), part))
    return parts


def _indices(part: tuple[slice, TaskArrays]) -> jax.Array:
    """Numbers of a part's tasks, int32 `[B]`; what fills it up is counted on."""
    rows, arrays = part
    return jnp.arange(rows.start, rows.start + len(jax.tree.leaves(arrays)[0]))


class Lanes(NamedTuple):
    """Episodes of N lanes on the host, time first; as in `Episodes`, with `public_solved` for its public examples."""

    solved: NDArray[np.bool_]  # [T + 1, N]
    public_solved: NDArray[np.bool_]  # [T + 1, N]
    action: NDArray[np.int32]  # [T, N]
    valid: NDArray[np.bool_]  # [T, N]
    says_stop: NDArray[np.bool_]  # [T, N]
    done_prob: NDArray[np.float32]  # [T, N]


def stop_times(lanes: Lanes, budget: int, mode: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """When each episode ends under a mode of stopping, and whether it ended by STOP: int `[N]`, bool `[N]`.

    STOP costs no budget; it is decided before each edit, and `verified` also looks at the last program.
    """
    stops = np.zeros((budget + 1, lanes.solved.shape[1]), np.bool_)
    if mode == "learned":
        stops[:budget] = lanes.says_stop[:budget]
    elif mode == "value_gated":
        stops[:budget] = lanes.says_stop[:budget] & (lanes.done_prob[:budget] >= 0.5)
    elif mode == "verified":
        stops[: budget + 1] = lanes.public_solved[: budget + 1]
    stopped = np.asarray(stops.any(axis=0))
    return np.where(stopped, stops.argmax(axis=0), budget), stopped


def outcomes_of(lanes: Lanes, labels: Labels, mode: str, split: str, budget: int) -> Outcomes:
    """The rows of N lanes, one a task, under one mode and budget."""
    end, stopped = stop_times(lanes, budget, mode)
    count = np.arange(len(end))
    time = np.arange(budget + 1)[:, None]
    solved = lanes.solved[end, count]
    return Outcomes.build(
        **labels._asdict(),
        mode=mode,
        split=split,
        k=budget,
        task=count,
        start_solved=lanes.solved[0],
        solved=solved,
        ever_solved=(lanes.solved[: budget + 1] & (time <= end[None])).any(axis=0),
        false_stop=stopped & ~solved,
        steps=end,
        valid_edits=(lanes.valid[:budget] & (time[:-1] < end[None])).sum(axis=0),
        edits=lanes.action.T,
    )


def to_lanes(episodes: Episodes, lane: int, public: int) -> Lanes:
    """One lane of each task of device episodes, on the host."""
    pick = lambda leaf: np.asarray(leaf[:, :, lane])  # noqa: E731
    return Lanes(
        solved=pick(episodes.solved),
        public_solved=pick(episodes.public) == public,
        action=pick(episodes.action),
        valid=pick(episodes.valid),
        says_stop=pick(episodes.says_stop),
        done_prob=pick(episodes.done_prob),
    )


def join_lanes(parts: Sequence[Lanes], sizes: Sequence[int]) -> Lanes:
    """Parts side by side, each cut to its size."""
    return Lanes(
        *(
            np.concatenate([leaf[:, :size] for leaf, size in zip(leaves, sizes, strict=True)], axis=1)
            for leaves in zip(*parts, strict=True)
        )
    )


def roll_split(roll: Roll, tasks: Tasks, budgets: Sequence[int], size: int | None = None) -> list[Lanes]:
    """Roll out a split with one lane for each budget; the lanes of all tasks for each budget, in that order.

    `size` is that of `chunks`.
    """
    public = tasks.public.targets.type.shape[-1]
    parts: list[list[Lanes]] = [[] for _ in budgets]
    sizes = []
    for rows, arrays in chunks(tasks, size):
        index = _indices((rows, arrays))
        budget = jnp.broadcast_to(jnp.asarray(budgets, jnp.int32), (len(index), len(budgets)))
        episodes = roll(arrays, budget, index)
        sizes.append(rows.stop - rows.start)
        for lane, part in enumerate(parts):
            part.append(to_lanes(episodes, lane, public))
    return [join_lanes(part, sizes) for part in parts]


def measure_policy(
    roll: Roll,
    splits: Mapping[str, Tasks],
    budgets: Sequence[int],
    labels: Labels,
    modes: Sequence[str] = MODES,
    advance: Callable[[str], object] = lambda split: None,
) -> Outcomes:
    """Outcomes of a policy on every split, under every mode and budget.

    Args:
      roll: episodes that never stop, of B tasks with budgets `[B, G]`.
      splits: tasks by split.
      budgets: K values; 0 asks the policy nothing.
      labels: whose rows they are.
      modes: ways of stopping.
      advance: called when a split is done.
    """
    parts = []
    for split, tasks in splits.items():
        for budget, lanes in zip(budgets, roll_split(roll, tasks, budgets), strict=True):
            parts += [outcomes_of(lanes, labels, mode, split, budget) for mode in modes]
        advance(split)
    return Outcomes.concatenate(parts)


def pass_at(
    play: Play,
    params: Params,
    splits: Mapping[str, Tasks],
    budget: int,
    samples: int,
    lanes: int,
    seed: int,
) -> dict[str, float]:
    """Share of the first `CHUNK` tasks of each split that at least one of several sampled episodes solves."""
    parts = {split: chunks(tasks)[0] for split, tasks in splits.items()}
    won = {split: sampled_wins(play, params, part, budget, samples, lanes, seed) for split, part in parts.items()}
    return {split: float(wins.any(axis=1).mean()) for split, wins in won.items()}


def sampled_wins(
    play: Play,
    params: Params,
    part: tuple[slice, TaskArrays],
    budget: int,
    samples: int,
    lanes: int,
    seed: int,
) -> NDArray[np.bool_]:
    """Which of several sampled episodes of each task of a part (see `chunks`) end solved: bool `[N, samples]`.

    The samples are drawn `lanes` at a time, the number that argmax episodes have, so that nothing is compiled anew.
    """
    rows, arrays = part
    base = jax.random.key(seed, impl=THREEFRY)
    index = _indices(part)
    budgets = jnp.full((len(index), lanes), budget, jnp.int32)
    won = []
    for draw in range(-(-samples // lanes)):
        keys = lane_keys(jax.random.fold_in(base, draw), index, lanes)
        episodes = play(params, arrays, repeat_lanes(arrays.start, lanes), budgets, keys, jnp.asarray(True))
        won.append(np.asarray(episodes.solved[-1]))
    return np.concatenate(won, axis=1)[: rows.stop - rows.start, :samples]
