"""Metrics of outcomes, in plain numpy: rates with Wilson intervals, headline columns, paired comparisons."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from fuyu_jax.evaluate.outcomes import Outcomes

ALL_SPLITS = "all"
HARD_SPLIT = "hard_composition"
PAIRED_SPLIT = "fresh_paired"
ORIGINAL_BUDGETS = (0, 4, 8)
BUDGET, HARD_BUDGET = 8, 12
COPIED_PHASE = "bc_policy"
CONFIDENCE = 0.95

MetricsRow = dict[str, Any]


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's score interval at 95 % for a proportion (Wilson, 1927); n is at least 1."""
    interval = stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def metrics_from_outcomes(outcomes: Outcomes) -> list[MetricsRow]:
    """The rows of `metrics.csv`: one an arm, phase, mode, split and budget, and one for all splits together.

    A rate whose denominator is empty is None. Several seeds are pooled.

    Raises:
      ValueError: where the outcomes hold one rollout twice, or a split has the reserved name `all`.
    """
    outcomes.check_unique()
    if (outcomes.split == ALL_SPLITS).any():
        raise ValueError(f"{ALL_SPLITS!r} is not a split: it stands for all of them together.")
    table = []
    for (arm, phase, mode), policy in outcomes.groups("arm", "phase", "mode"):
        parts = [((split, k), rows) for (split, k), rows in policy.groups("split", "k")]
        parts += [((ALL_SPLITS, k), rows) for (k,), rows in policy.groups("k")]
        for (split, k), rows in parts:
            table.append({"arm": arm, "phase": phase, "mode": mode, "split": split, "k": k, **rates(rows)})
    return table


def extra_metrics(outcomes: Outcomes) -> list[MetricsRow]:
    """Rates that `metrics.csv` has no column for, a row as there: `ever_solved`, and `pair_accuracy` with its interval.

    `pair_accuracy` is the share of pairs (tasks 2j and 2j+1 of `fresh_paired`) of which both are solved.
    """
    table = []
    for (arm, phase, mode, split, k), rows in outcomes.groups("arm", "phase", "mode", "split", "k"):
        row = {"arm": arm, "phase": phase, "mode": mode, "split": split, "k": k, "n": len(rows)}
        row["ever_solved"] = _share(rows.ever_solved)
        if split == PAIRED_SPLIT:
            row |= _pair_accuracy(rows)
        table.append(row)
    return table


def budget(split: str) -> int:
    """The edit budget at which `accuracy_at_budget` counts a split."""
    return HARD_BUDGET if split == HARD_SPLIT else BUDGET


def at_budget(outcomes: Outcomes) -> Outcomes:
    """The rows that `accuracy_at_budget` counts: K=8, and K=12 for `hard_composition`."""
    return outcomes.take(outcomes.k == np.where(outcomes.split == HARD_SPLIT, HARD_BUDGET, BUDGET))


def headline(outcomes: Outcomes) -> list[dict[str, Any]]:
    """One row an arm, phase and mode, with the two headline columns and what the original reported beside them.

    `mean_accuracy_k048`, `false_stop_rate_k048` and `mean_steps_k048` are means over K in 0, 4, 8 and the splits,
    `k8_accuracy` pools the splits at K=8, and `accuracy_at_budget` pools them at the budget of `at_budget`, with a
    Wilson interval. A column is None where one of its budgets was not measured in every split.
    """
    table: list[dict[str, Any]] = []
    for (arm, phase, mode), rows in outcomes.groups("arm", "phase", "mode"):
        splits = len(np.unique(rows.split))
        cells = {(split, k): part for (split, k), part in rows.select(k=ORIGINAL_BUDGETS).groups("split", "k")}
        whole = len(cells) == splits * len(ORIGINAL_BUDGETS)
        eight, final = rows.select(k=BUDGET), at_budget(rows)
        row: dict[str, Any] = {"arm": arm, "phase": phase, "mode": mode}
        row["mean_accuracy_k048"] = _mean_of_means(part.solved for part in cells.values()) if whole else None
        row["k8_accuracy"] = _share(eight.solved) if len(np.unique(eight.split)) == splits else None
        if len(np.unique(final.split)) == splits:
            low, high = wilson(int(final.solved.sum()), len(final))
            row |= {"accuracy_at_budget": _share(final.solved), "low": low, "high": high, "n": len(final)}
        else:
            row |= {"accuracy_at_budget": None, "low": None, "high": None, "n": 0}
        row["false_stop_rate_k048"] = _mean_of_means(part.false_stop for part in cells.values()) if whole else None
        row["mean_steps_k048"] = _mean_of_means(part.steps for part in cells.values()) if whole else None
        table.append(row)
    return table


@dataclass(frozen=True)
class PairedDifference:
    """How much more of the same tasks one policy solves than another.

    Attributes:
      tasks: tasks compared; seeds: seeds in which each was.
      accuracy, base_accuracy: share solved by the one and by the other.
      difference: the first minus the second.
      low, high: the 95 % interval of the difference, by Student's t over tasks, each task averaged over its seeds;
        None for one task.
      gained, lost: rollouts that only the one, or only the other, solved.
      mcnemar_mid_p: McNemar's two-sided mid-p of these two counts (Fagerland et al., 2013).
      seed_std: sample standard deviation (n-1) of the difference over seeds; None for one seed.
    """

    tasks: int
    seeds: int
    accuracy: float
    base_accuracy: float
    difference: float
    low: float | None
    high: float | None
    gained: int
    lost: int
    mcnemar_mid_p: float
    seed_std: float | None

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the interval leaves zero out, else `undecided`."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "undecided"
        return "better" if self.low > 0 else "worse"


def paired_difference(
    policy: Outcomes, base: Outcomes, split: str = ALL_SPLITS, k: int | None = None
) -> PairedDifference:
    """Compares two policies on the same tasks and seeds.

    Args:
      policy: outcomes of one arm, phase and mode.
      base: outcomes of another.
      split: the split to compare in, or `all`.
      k: the budget in every split; None takes that of `accuracy_at_budget`.

    Raises:
      ValueError: where the two do not hold the same tasks and seeds, once each, or hold none.
    """
    sides = []
    for side in (policy, base):
        rows = at_budget(side) if k is None else side.select(k=k)
        rows = rows if split == ALL_SPLITS else rows.select(split=split)
        keys = list(zip(rows.split.tolist(), rows.task.tolist(), rows.seed.tolist(), strict=True))
        sides.append(dict(zip(keys, rows.solved.tolist(), strict=True)))
        if len(sides[-1]) < len(keys):
            raise ValueError("a policy's outcomes hold a task more than once; select one arm, phase and mode.")
    if sides[0].keys() != sides[1].keys() or not sides[0]:
        raise ValueError(f"the two policies were not measured on the same tasks of {split!r}; nothing to pair.")
    keys = sorted(sides[0])
    solved, base_solved = (np.array([side[key] for key in keys], np.float64) for side in sides)
    difference = solved - base_solved
    by_task = _group_means(difference, [key[:2] for key in keys])
    by_seed = _group_means(difference, [key[2:] for key in keys])
    low, high = t_interval(by_task)
    gained, lost = int((difference > 0).sum()), int((difference < 0).sum())
    return PairedDifference(
        tasks=len(by_task),
        seeds=len(by_seed),
        accuracy=float(solved.mean()),
        base_accuracy=float(base_solved.mean()),
        difference=float(by_task.mean()),
        low=low,
        high=high,
        gained=gained,
        lost=lost,
        mcnemar_mid_p=mcnemar_mid_p(gained, lost),
        seed_std=sample_std(by_seed.tolist()),
    )


def mcnemar_mid_p(gained: int, lost: int) -> float:
    """McNemar's two-sided mid-p value of two discordant counts: 1 where both are zero or equal."""
    n, least = gained + lost, min(gained, lost)
    return min(1.0, float(2 * stats.binom.cdf(least, n, 0.5) - stats.binom.pmf(least, n, 0.5)))


def sample_std(values: Sequence[float]) -> float | None:
    """The sample standard deviation (divisor n-1), the only spread over seeds that is reported; None for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def round_of(phase: str) -> int | None:
    """The round n of a phase `ARM_rn_policy`, or None for another phase."""
    match = re.search(r"_r(\d+)_policy$", phase)
    return int(match[1]) if match else None


def last_update(phases: Iterable[str]) -> str | None:
    """The phase of the last round by number (round 10 comes after round 9), or None where there is no round."""
    rounds = {phase: number for phase in phases if (number := round_of(phase)) is not None}
    return max(rounds, key=rounds.__getitem__) if rounds else None


def summary(outcomes: Outcomes) -> dict[str, Any]:
    """What `results.json` says of the outcomes: `headline`, `extra_metrics` and `comparisons`.

    `comparisons` sets the policy after the last update beside the copied one, a row an arm, mode and split. The budget
    is that of `accuracy_at_budget`, or K=8 in every split (column `endpoint`) where that was not measured.
    """
    comparisons = []
    for (arm, mode), rows in outcomes.groups("arm", "mode"):
        after = last_update(np.unique(rows.phase).tolist())
        copied = rows.select(phase=COPIED_PHASE)
        if after is None or not len(copied):
            continue
        updated = rows.select(phase=after)
        splits = np.unique(rows.split).tolist()
        k = None if len(np.unique(at_budget(copied).split)) == len(splits) else BUDGET
        if not len(copied.select(k=BUDGET)):
            continue
        for split in [*splits, ALL_SPLITS]:
            found = paired_difference(updated, copied, split, k)
            row = {"arm": arm, "phase": after, "base_phase": COPIED_PHASE, "mode": mode, "split": split}
            endpoint = "accuracy_at_budget" if k is None else "k8_accuracy"
            comparisons.append({**row, "endpoint": endpoint, **asdict(found), "verdict": found.verdict})
    return {"headline": headline(outcomes), "extra_metrics": extra_metrics(outcomes), "comparisons": comparisons}


def rates(rows: Outcomes) -> dict[str, Any]:
    """The rates of `metrics.csv` over all of the rows; one whose denominator is empty is None."""
    low, high = wilson(int(rows.solved.sum()), len(rows))
    attempted = int(rows.steps.sum())
    return {
        "n": len(rows),
        "accuracy": _share(rows.solved),
        "accuracy_low": low,
        "accuracy_high": high,
        "new_solved": _share(rows.solved[~rows.start_solved]),
        "kept_solved": _share(rows.solved[rows.start_solved]),
        "false_stop_rate": _share(rows.false_stop),
        "valid_edit_rate": int(rows.valid_edits.sum()) / attempted if attempted else None,
        "mean_steps": float(rows.steps.mean()),
    }


def _pair_accuracy(rows: Outcomes) -> dict[str, Any]:
    """The share of whole pairs of which both tasks are solved; a task whose partner was not measured is left out."""
    paired = Outcomes(**{**vars(rows), "task": rows.task // 2})
    pairs = [part.solved for _, part in paired.groups("seed", "task") if len(part) == 2]
    if not pairs:
        return {"pairs": 0, "pair_accuracy": None, "pair_accuracy_low": None, "pair_accuracy_high": None}
    both = sum(bool(solved.all()) for solved in pairs)
    low, high = wilson(both, len(pairs))
    return {
        "pairs": len(pairs),
        "pair_accuracy": both / len(pairs),
        "pair_accuracy_low": low,
        "pair_accuracy_high": high,
    }


def _share(values: np.ndarray[Any, Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _mean_of_means(parts: Iterable[np.ndarray[Any, Any]]) -> float:
    return float(np.mean([part.mean() for part in parts]))


def _group_means(values: np.ndarray[Any, Any], keys: Sequence[tuple[Any, ...]]) -> np.ndarray[Any, Any]:
    """The mean of the values of each key, in order of first appearance."""
    index = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    members = np.array([index[key] for key in keys])
    return np.bincount(members, values) / np.bincount(members)


def t_interval(values: np.ndarray[Any, Any]) -> tuple[float | None, float | None]:
    """Student's t interval at 95 % for the mean of values `[N]`; None for fewer than two."""
    if len(values) < 2:
        return None, None
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)
