"""Outcomes of one policy as a panel of seeds by tasks, and the paired difference of two panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuyu_jax.evaluate.metrics import PAIRED_SPLIT, at_budget, budget
from fuyu_jax.evaluate.outcomes import Outcomes

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Panel:
    """What became of N tasks in S seeds, each task at the budget of `accuracy_at_budget`.

    Attributes:
      seeds: the seeds `[S]`, rising.
      split, task: split and index of each task `[N]`, in sorted order.
      start_solved: whether each task's start program solves it, `[N]`: the same in every seed.
      solved, false_stop: whether each rollout ended solved, or stopped unsolved, `[S, N]`.
    """

    seeds: tuple[int, ...]
    split: NDArray[np.str_]
    task: NDArray[np.int64]
    start_solved: Bools
    solved: Bools
    false_stop: Bools

    @classmethod
    def of(cls, outcomes: Outcomes) -> Panel:
        """The panel of one policy (one arm, phase and mode), whatever the order of its rows.

        Raises:
          ValueError: where a split lacks its budget, a seed measured other tasks than the first seed, a rollout is
            there twice, or there is none.
        """
        rows = at_budget(outcomes)
        for split in np.unique(outcomes.split).tolist():
            if split not in rows.split:
                raise ValueError(f"{split} was not measured at K={budget(split)}")
        if not len(rows):
            raise ValueError("there are no outcomes")
        rows = rows.take(np.lexsort((rows.task, rows.split, rows.seed)))
        seeds = np.unique(rows.seed)
        shape = (len(seeds), len(rows) // len(seeds))
        if len(rows) != shape[0] * shape[1] or (rows.seed != np.repeat(seeds, shape[1])).any():
            raise ValueError("its seeds measured different tasks")
        split, task, start_solved = (
            column.reshape(shape) for column in (rows.split, rows.task, rows.start_solved)
        )  # each [S, N]
        if any((column != column[:1]).any() for column in (split, task, start_solved)):
            raise ValueError("its seeds measured different tasks")
        if ((split[0, 1:] == split[0, :-1]) & (task[0, 1:] == task[0, :-1])).any():
            raise ValueError("it holds a rollout twice")
        return cls(
            tuple(seeds.tolist()),
            split[0],
            task[0],
            start_solved[0],
            rows.solved.reshape(shape),
            rows.false_stop.reshape(shape),
        )

    def of_seeds(self, seeds: Sequence[int]) -> Panel:
        """The panel of some of the seeds, in their order."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return replace(self, seeds=tuple(seeds), solved=self.solved[rows], false_stop=self.false_stop[rows])

    def same_tasks(self, other: Panel) -> bool:
        """Whether both panels are of the same tasks, started from the same programs as far as outcomes tell."""
        names = ("split", "task", "start_solved")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)


class Difference(NamedTuple):
    """Paired differences of a rate between two policies, task by task.

    Attributes:
      values: the differences of U sampling units in S seeds, `[S, U]`, scaled so that the mean over all is the
        difference of the two pooled rates. A unit is a task, or both tasks of a pair in `fresh_paired`.
      strata: the number of each unit's split, `[U]`: units are drawn anew within their split.
      tasks: the number of tasks.
    """

    values: Floats
    strata: NDArray[np.int64]
    tasks: int

    @property
    def by_seed(self) -> list[float]:
        """The difference in each seed, `[S]`."""
        return [float(value) for value in self.values.mean(axis=1)]


def difference(policy: Panel, control: Panel, rate: str = "solved", which: Bools | None = None) -> Difference:
    """The paired differences of a rate, policy minus control.

    Args:
      policy: the panel whose rate is the first term.
      control: a panel of the same seeds and tasks.
      rate: `solved` or `false_stop`.
      which: the tasks to count, a mask `[N]`; all where None.

    Raises:
      ValueError: where the panels don't pair, or no task is left.
    """
    if policy.seeds != control.seeds or not policy.same_tasks(control):
        raise ValueError("the two panels are not of the same seeds and tasks; nothing to pair.")
    which = np.ones(len(policy.task), np.bool_) if which is None else which
    if not which.any():
        raise ValueError("no task is left to compare.")
    each = (getattr(policy, rate).astype(np.float64) - getattr(control, rate))[:, which]  # [S, N]
    split, task = policy.split[which], policy.task[which]
    # The tasks of a pair share frame and inputs: they are one observation, not two.
    unit_task = np.where(split == PAIRED_SPLIT, task // 2, task)
    strata = np.unique(split, return_inverse=True)[1]
    first = np.flatnonzero(np.append(True, (strata[1:] != strata[:-1]) | (unit_task[1:] != unit_task[:-1])))
    values = np.add.reduceat(each, first, axis=1) * (len(first) / each.shape[1])  # [S, U]
    return Difference(values, strata[first], each.shape[1])
