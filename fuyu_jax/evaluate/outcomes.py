"""What became of each task of each evaluation: the one table from which every metric follows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fuyu_jax.runs.tables import OUTCOMES_COLUMNS, read_csv

Texts = NDArray[np.str_]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_TYPES: dict[str, type] = {"Texts": np.str_, "Ints": np.int64, "Bools": np.bool_}


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Outcomes of N rollouts as columns, each `[N]`; the fields are the columns of `outcomes.csv`, in their order.

    Attributes:
      arm: the arm that made the policy, or `baseline`.
      phase: the policy, as in `bc_policy`, `grpo_echo_r2_policy` or `do_nothing`.
      seed: the seed of the run.
      mode: what decides to stop: `forced`, `learned`, `value_gated` or `verified`.
      split: the split of the task.
      k: the edit budget.
      task: the task's index within its split.
      start_solved: whether the start program solves the task.
      solved: whether the final program does.
      ever_solved: whether any program of the rollout does.
      false_stop: whether the rollout ended by STOP, unsolved.
      steps: edits attempted.
      valid_edits: how many of these were valid.
      edits: the attempted actions as text, indices with spaces between.
    """

    arm: Texts
    phase: Texts
    seed: Ints
    mode: Texts
    split: Texts
    k: Ints
    task: Ints
    start_solved: Bools
    solved: Bools
    ever_solved: Bools
    false_stop: Bools
    steps: Ints
    valid_edits: Ints
    edits: Texts

    @classmethod
    def build(cls, **columns: ArrayLike) -> Outcomes:
        """Outcomes from one array `[N]` or one value for all rows a column; `edits` may also be actions `[N, T]`.

        Raises:
          ValueError: where lengths differ, or a task has more steps than its actions or its budget allow.
        """
        if np.ndim(columns["edits"]) == 2:
            columns["edits"] = edits_to_text(np.asarray(columns["edits"]), np.asarray(columns["steps"]))
        arrays: list[NDArray[Any]] = [np.asarray(columns[item.name], _dtype(item)) for item in dataclasses.fields(cls)]
        length = max((array.shape[0] for array in arrays if array.ndim), default=1)
        outcomes = cls(*(np.broadcast_to(array, (length,)) for array in arrays))
        if (outcomes.steps > outcomes.k).any():
            raise ValueError(f"{outcomes.steps.max()} steps are more than the budget allows.")
        return outcomes

    @classmethod
    def concatenate(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """All rows of the parts, in order."""
        names = [item.name for item in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, str]]) -> Outcomes:
        """Outcomes from rows of text cells, as `read_csv` gives them."""
        table = list(rows)
        columns = {}
        for item in dataclasses.fields(cls):
            cells = [row[item.name] for row in table]
            columns[item.name] = np.array(cells, np.str_) if item.type == "Texts" else np.array(cells, np.int64)
        return cls(*(columns[item.name].astype(_dtype(item)) for item in dataclasses.fields(cls)))

    @classmethod
    def read(cls, path: Path) -> Outcomes:
        """The outcomes in an `outcomes.csv`."""
        return cls.from_rows(read_csv(path))

    def __len__(self) -> int:
        """The number N of rows."""
        return len(self.task)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row a rollout, for `write_csv` with `OUTCOMES_COLUMNS`."""
        for values in zip(*(getattr(self, name).tolist() for name in OUTCOMES_COLUMNS), strict=True):
            yield dict(zip(OUTCOMES_COLUMNS, values, strict=True))

    def take(self, which: Bools | Ints) -> Outcomes:
        """The rows at a mask `[N]` or at indices."""
        return Outcomes(*(getattr(self, item.name)[which] for item in dataclasses.fields(self)))

    def select(self, **values: Any) -> Outcomes:
        """The rows whose columns have these values; a list or tuple allows any of its members."""
        mask = np.ones(len(self), np.bool_)
        for name, value in values.items():
            allowed = list(value) if isinstance(value, list | tuple) else [value]
            mask &= np.isin(getattr(self, name), allowed)
        return self.take(mask)

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], Outcomes]]:
        """The rows with equal values in the named columns, by those values, in order of first appearance."""
        code = np.zeros(len(self), np.int64)
        for name in names:
            values, inverse = np.unique(getattr(self, name), return_inverse=True)
            code = code * len(values) + inverse
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        members = np.split(order, np.cumsum(np.bincount(inverse))[:-1]) if len(self) else []
        for group in np.argsort(first):
            rows = self.take(members[group])
            yield tuple(getattr(rows, name)[0].item() for name in names), rows

    def check_unique(self) -> None:
        """Refuses outcomes that hold one rollout twice.

        Raises:
          ValueError: naming such a rollout.
        """
        counts = Counter(zip(*(getattr(self, name).tolist() for name in _KEY), strict=True))
        for key, count in counts.most_common(1):
            if count > 1:
                raise ValueError(f"outcomes hold {dict(zip(_KEY, key, strict=True))} {count} times.")


_KEY = ("arm", "phase", "seed", "mode", "split", "k", "task")


def edits_to_text(actions: NDArray[Any], steps: NDArray[Any]) -> list[str]:
    """The first `steps[i]` of the actions `[N, T]`, as text with spaces between.

    Raises:
      ValueError: where a task has more steps than there are actions.
    """
    if (steps > actions.shape[1]).any():
        raise ValueError(f"{steps.max()} steps are more than the {actions.shape[1]} actions of a rollout.")
    counts = np.broadcast_to(steps, actions.shape[:1]).tolist()
    return [" ".join(map(str, row[:count])) for row, count in zip(actions.tolist(), counts, strict=True)]


def _dtype(item: dataclasses.Field[Any]) -> type:
    return _TYPES[str(item.type)]
