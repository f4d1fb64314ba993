"""Curves of solve rate against what was spent, their areas, and paired differences between methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuyu_jax.evaluate.metrics import mcnemar_mid_p, t_interval, wilson

NOTHING, SPURIOUS, SOLVED = ".x1"  # an answer in a cell of `outcomes.csv`
COSTS = ("executions", "passes")

CURVE_COLUMNS = (
    "method", "split", "public", "cost", "budget", "n", "solve_rate", "low", "high", "accepted_rate", "spurious",
    "spurious_rate", "spurious_low", "spurious_high",
)  # fmt: skip
AREA_COLUMNS = ("method", "split", "public", "cost", "first", "last", "n", "area", "low", "high")
DIFFERENCE_COLUMNS = (
    "method", "base", "split", "public", "cost", "budget", "n", "difference", "low", "high", "gained", "lost",
    "mcnemar_mid_p",
)  # fmt: skip
OUTCOME_COLUMNS = ("method", "split", "public", "task", "executions", "passes", "by_executions", "by_passes", "edits")
RATIO_COLUMNS = (
    "split", "public", "base", "budget", "method", "rate", "executions", "times", "at_least",
)  # fmt: skip
TIMING_COLUMNS = ("method", "split", "public", "budget", "n", "mean_executions", "mean_seconds")

Row = dict[str, Any]


class Label(NamedTuple):
    """Whose curve it is: the method, the split of its tasks, and the number of public examples that judged."""

    method: str
    split: str
    public: int


@dataclass(frozen=True)
class Curve:
    """Answers to N tasks after each of K amounts spent.

    Attributes:
      cost: what is spent, one of `COSTS`.
      budgets: the amounts, rising.
      accepted: bool `[N, K]`, there was an answer, right on the judging examples.
      solved: bool `[N, K]`, it was right on all examples, hidden ones included.
    """

    cost: str
    budgets: tuple[int, ...]
    accepted: NDArray[np.bool_]
    solved: NDArray[np.bool_]

    def up_to(self, budget: int) -> Curve:
        """The part of the curve with budgets of at most this."""
        count = sum(each <= budget for each in self.budgets)
        return Curve(self.cost, self.budgets[:count], self.accepted[:, :count], self.solved[:, :count])

    def areas(self) -> NDArray[np.float64]:
        """For each task the area under its curve over log2 of the budget, as a share of the whole: float64 `[N]`.

        By the trapezoidal rule; a single budget's area is its height. The mean over tasks is the area under the curve
        of solve rates.
        """
        if len(self.budgets) == 1:
            return self.solved[:, 0].astype(np.float64)
        at = np.log2(self.budgets)
        heights = self.solved.astype(np.float64)
        pieces = (heights[:, 1:] + heights[:, :-1]) / 2 * np.diff(at)[None]
        return np.asarray(pieces.sum(axis=1) / (at[-1] - at[0]))

    def letters(self) -> list[str]:
        """A letter a budget for each task: nothing found, spurious, or solved."""
        return [
            "".join(SOLVED if good else SPURIOUS if some else NOTHING for some, good in zip(*row, strict=True))
            for row in zip(self.accepted.tolist(), self.solved.tolist(), strict=True)
        ]


def pooled(curves: Sequence[Curve]) -> Curve:
    """The curve of all tasks together."""
    accepted, solved = (np.concatenate([getattr(curve, name) for curve in curves]) for name in ("accepted", "solved"))
    return Curve(curves[0].cost, curves[0].budgets, accepted, solved)


def curve_rows(label: Label, curve: Curve) -> list[Row]:
    """The rows of `search.csv`; a rate of nothing is None."""
    rows = []
    for place, budget in enumerate(curve.budgets):
        solved, accepted = curve.solved[:, place], curve.accepted[:, place]
        n, answers, wrong = len(solved), int(accepted.sum()), int((accepted & ~solved).sum())
        low, high = wilson(int(solved.sum()), n)
        wrong_low, wrong_high = wilson(wrong, answers) if answers else (None, None)
        rows.append(
            {
                **label._asdict(),
                "cost": curve.cost,
                "budget": budget,
                "n": n,
                "solve_rate": float(solved.mean()),
                "low": low,
                "high": high,
                "accepted_rate": answers / n,
                "spurious": wrong,
                "spurious_rate": wrong / answers if answers else None,
                "spurious_low": wrong_low,
                "spurious_high": wrong_high,
            }
        )
    return rows


def area_row(label: Label, curve: Curve) -> Row:
    """The row of `areas.csv`; the interval is Student's t over tasks at 95 %, None for one task."""
    areas = curve.areas()
    low, high = t_interval(areas)
    ends = {"first": curve.budgets[0], "last": curve.budgets[-1]}
    return {
        **label._asdict(),
        "cost": curve.cost,
        **ends,
        "n": len(areas),
        "area": float(areas.mean()),
        "low": low,
        "high": high,
    }


def difference_rows(label: Label, base: str, curve: Curve, other: Curve) -> list[Row]:
    """The rows of `differences.csv`: a method's solve rate less that of `base` on the same tasks, budget by budget.

    The last row, without a budget, is the difference of the areas. Intervals are Student's t over tasks at 95 %.
    """
    rows = []
    names = {"method": label.method, "base": base, "split": label.split, "public": label.public, "cost": curve.cost}
    for place, budget in enumerate(curve.budgets):
        gaps = curve.solved[:, place].astype(np.float64) - other.solved[:, place]
        gained, lost = int((gaps > 0).sum()), int((gaps < 0).sum())
        p_value = mcnemar_mid_p(gained, lost)
        rows.append(names | _mean(gaps) | {"budget": budget, "gained": gained, "lost": lost, "mcnemar_mid_p": p_value})
    rows.append(names | _mean(curve.areas() - other.areas()))
    return rows


def _mean(gaps: NDArray[np.float64]) -> Row:
    low, high = t_interval(gaps)
    return {"n": len(gaps), "difference": float(gaps.mean()), "low": low, "high": high}


def executions_for(rate: float, curve: Curve) -> float | None:
    """The budget at which a curve reaches a solve rate, interpolated over log2; None where it never does."""
    rates = curve.solved.mean(axis=0)
    if rates[-1] < rate:
        return None
    place = int(np.argmax(rates >= rate))
    if place == 0:
        return float(curve.budgets[0])
    below, above = rates[place - 1], rates[place]
    ends = np.log2(curve.budgets[place - 1 : place + 1])
    return float(2 ** (ends[0] + (ends[1] - ends[0]) * (rate - below) / (above - below)))


def ratio_rows(curves: Mapping[str, Curve], base: str, budget: int) -> list[Row]:
    """How many times the executions of `base` each method needs for the rate that `base` has at a budget.

    `times` is None, and `at_least` the largest budget over the base's, where a method never gets there.
    """
    rate = float(curves[base].solved[:, curves[base].budgets.index(budget)].mean())
    own = executions_for(rate, curves[base])
    assert own is not None
    rows = []
    for method, curve in curves.items():
        needs = executions_for(rate, curve)
        never = curve.budgets[-1] / own if needs is None else None
        times = None if needs is None else needs / own
        rows.append({"method": method, "rate": rate, "executions": needs, "times": times, "at_least": never})
    return rows
