"""What the tasks cost without a model: doing nothing, random edits, and both oracles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import vm
from fuyu_jax.controller.distribution import NEVER
from fuyu_jax.controller.heads import DISTANCE_CLASSES, Readout
from fuyu_jax.controller.state_tokens import MAX_BUDGET
from fuyu_jax.evaluate.measure import Labels, chunks, lane_keys, measure_policy
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.rollout import Episodes, repeat_lanes, rollout
from fuyu_jax.sharding import split_batch
from vm import beam, lowering, oracle
from vm.observation import Observation
from vm.reach import Search
from vm.tasks import TaskArrays, Tasks
from vm.types import THREEFRY

BASELINE = "baseline"
DATA_SEED = 0  # evaluation tasks and what is random about their baselines never change


def _rows(
    phase: str, mode: str, split: str, k: int, start_solved: np.ndarray, solved: np.ndarray, steps: np.ndarray,
    edits: np.ndarray,
) -> Outcomes:  # fmt: skip
    """Rows of a baseline whose every edit is valid and which never stops wrongly; all arrays `[N]`, edits `[N, T]`."""
    return Outcomes.build(
        arm=BASELINE,
        phase=phase,
        seed=DATA_SEED,
        mode=mode,
        split=split,
        k=k,
        task=np.arange(len(solved)),
        start_solved=start_solved,
        solved=solved,
        ever_solved=solved,
        false_stop=False,
        steps=steps,
        valid_edits=steps,
        edits=edits,
    )


def measure_all(
    splits: Mapping[str, Tasks],
    budgets: Sequence[int],
    width: int,
    settings: vm.Settings,
    advance: Callable[[], object],
) -> tuple[Outcomes, dict[str, float]]:
    """Every row that needs no model, and what the oracle's search of this width ran, as `oracle_search` tells it.

    `advance` is called three times, as parts of it are done.
    """
    random = random_valid(splits, budgets, settings)
    advance()
    start_solved = solved_at_start(random)
    reference = oracle_reference(splits, budgets, start_solved, settings)
    advance()
    found, executions = oracle_search(splits, budgets, width, settings)
    advance()
    return Outcomes.concatenate([do_nothing(start_solved, budgets), random, reference, found]), executions


def solved_at_start(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """Whether each start program already solves its task: bool `[N]` for each split, from any baseline's outcomes."""
    first = outcomes.select(k=int(outcomes.k[0]))
    return {split: rows.start_solved for (split,), rows in first.groups("split")}


def do_nothing(start_solved: Mapping[str, np.ndarray], budgets: Sequence[int]) -> Outcomes:
    """Leaving every start program as it is."""
    parts = []
    for split, solved in start_solved.items():
        nothing, no_edits = np.zeros(len(solved), np.int64), np.zeros((len(solved), 0), np.int64)
        parts += [_rows("do_nothing", "forced", split, k, solved, solved, nothing, no_edits) for k in budgets]
    return Outcomes.concatenate(parts)


def _indifferent(seen: Observation, num_edits: int) -> Readout:
    """A readout that prefers no edit to another, and never stops."""
    lead = seen.step.shape
    nothing = jnp.zeros(lead)
    return Readout(
        edit_logits=jnp.zeros((*lead, num_edits)),
        stop_logit=jnp.full(lead, NEVER),
        value_logit=nothing,
        distance_logits=jnp.zeros((*lead, DISTANCE_CLASSES)),
        act=jnp.zeros((*lead, 0)),
        examples=jnp.zeros((*lead, 0, 0)),
    )


def random_valid(splits: Mapping[str, Tasks], budgets: Sequence[int], settings: vm.Settings) -> Outcomes:
    """Valid edits drawn evenly until the budget is spent."""
    steps = max(*budgets, 1)

    @jax.jit
    @functools.partial(split_batch, axis=1)
    def roll(tasks: TaskArrays, budget: jax.Array, index: jax.Array) -> Episodes:
        base = jax.random.key(DATA_SEED, impl=THREEFRY)
        return rollout(
            lambda seen: _indifferent(seen, settings.num_actions - 1),
            tasks.public,
            tasks.hidden,
            repeat_lanes(tasks.start, budget.shape[1]),
            budget,
            steps=steps,
            keys=lane_keys(base, index, budget.shape[1]),
            sampled=True,
            settings=settings,
        )

    return measure_policy(roll, splits, budgets, Labels(BASELINE, "random_valid", DATA_SEED), modes=("forced",))


def oracle_reference(
    splits: Mapping[str, Tasks],
    budgets: Sequence[int],
    start_solved: Mapping[str, np.ndarray],
    settings: vm.Settings,
) -> Outcomes:
    """Repairs along the reference. A task is solved within K exactly when its distance is at most K."""

    @jax.jit
    @split_batch
    def repair(tasks: TaskArrays, keys: jax.Array) -> oracle.OraclePath:
        one = lambda start, reference, key: oracle.repair(start, reference, key, MAX_BUDGET, settings)  # noqa: E731
        return jax.vmap(one)(tasks.start, tasks.reference, keys)

    parts = []
    for split, tasks in splits.items():
        distance, actions = [], []
        for rows, arrays in chunks(tasks):
            index = jnp.arange(rows.start, rows.start + arrays.family.shape[0])
            keys = lane_keys(jax.random.key(DATA_SEED, impl=THREEFRY), index, 1)[:, 0]
            path = repair(arrays, keys)
            size = rows.stop - rows.start
            distance.append(np.asarray(path.distance)[:size])
            actions.append(np.asarray(path.actions)[:size])
        far, all_actions = np.concatenate(distance), np.concatenate(actions)
        for k in budgets:
            steps = np.minimum(far, k)
            parts.append(
                _rows("oracle_reference", "verified", split, k, start_solved[split], far <= k, steps, all_actions)
            )
    return Outcomes.concatenate(parts)


def oracle_search(
    splits: Mapping[str, Tasks], budgets: Sequence[int], width: int, settings: vm.Settings
) -> tuple[Outcomes, dict[str, float]]:
    """Search for the targets, and the mean number of programs it ran for a task of each split.

    The search to the largest budget contains that to each smaller one.
    """
    steps = max(*budgets, 1)

    @functools.partial(jax.jit, compiler_options=lowering.compiler_options())
    @split_batch
    def search(tasks: TaskArrays) -> Search:
        return beam.search_tasks(tasks.start, tasks.public, tasks.hidden, steps, width, settings)

    parts, executions = [], {}
    for split, tasks in splits.items():
        found = [
            jax.tree.map(lambda leaf, size=rows.stop - rows.start: np.asarray(leaf)[:size], search(arrays))
            for rows, arrays in chunks(tasks)
        ]
        edits, actions, programs = (np.concatenate(column) for column in zip(*found, strict=True))
        executions[split] = float(np.mean(programs[:, -1]))
        for k in budgets:
            steps_taken = np.where(edits <= k, edits, 0)
            parts.append(_rows("oracle_search", "verified", split, k, edits == 0, edits <= k, steps_taken, actions))
    return Outcomes.concatenate(parts), executions
