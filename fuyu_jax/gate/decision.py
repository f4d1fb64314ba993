"""The gate's clauses, with numbers fixed before any run, and what they decide together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuyu_jax.evaluate.metrics import mcnemar_mid_p, sample_std
from fuyu_jax.gate.interval import TAIL, Interval, bootstrap_t
from fuyu_jax.gate.panel import Panel, difference

CONTINUED, SHUFFLED = "bc_continued", "shuffled"  # the two controls
MOST_ARMS = 4
LEAST_SEEDS, LEAST_TASKS = 5, 1_280
LEAST_EFFECT = 0.03
MOST_FALSE_STOP = 0.02
LEAST_KEPT = -0.02
LEAST_SPLIT = -0.03
PASS, FAIL, UNDECIDABLE = "PASS", "FAIL", "NOT DECIDABLE"
_ROUNDING = 1e-12  # a difference of exactly three points is three points


@dataclass(frozen=True)
class Study:
    """One arm and its controls, each None where it is missing.

    Attributes:
      arm: the arm's policy after its last round.
      continued: `bc_continued` after its last round.
      shuffled: the same arm with its own signal permuted.
      problems: sentences that say why something is missing, found before the outcomes were looked at.
    """

    arm: Panel | None
    continued: Panel | None
    shuffled: Panel | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class SeedPair:
    """An arm against a control in one seed: shown, not decided on. Counts are of tasks, `gained` by the arm alone."""

    seed: int
    difference: float
    gained: int
    lost: int
    mcnemar_mid_p: float


@dataclass(frozen=True)
class Comparison:
    """An arm against one control.

    Attributes:
      control: `bc_continued` or `shuffled`.
      tasks: the number of tasks.
      solved, false_stop: the difference of the pooled rates with its interval.
      kept_solved: that among tasks solved at the start; None where there are none.
      splits: the difference of `solved` in each split.
      seeds: the difference in each seed.
      seed_std: sample standard deviation (n-1) over the seeds; None for one seed.
    """

    control: str
    tasks: int
    solved: Interval
    false_stop: Interval
    kept_solved: Interval | None
    splits: dict[str, Interval]
    seeds: tuple[SeedPair, ...]
    seed_std: float | None


@dataclass(frozen=True)
class Clause:
    """One condition of the gate.

    Attributes:
      name: what is asked for.
      figure: the number that decides; None where it can't be had.
      limit: what it is held against.
      holds: whether it does.
      detail: what the number is of, where the name doesn't say.
    """

    name: str
    figure: float | None
    limit: float
    holds: bool
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the gate says of one arm.

    Attributes:
      clauses: every clause with its figure.
      comparisons: the arm against each control that there is.
      p, adjusted_p: the larger one-sided p-value of the two comparisons, and what Holm's correction makes of it.
      reasons: sentences that say why the gate can't decide, where it can't.
    """

    clauses: tuple[Clause, ...]
    comparisons: dict[str, Comparison]
    p: float
    adjusted_p: float
    reasons: tuple[str, ...]

    @property
    def result(self) -> str:
        """`NOT DECIDABLE` where a reason stands against it, else `PASS` where every clause holds, else `FAIL`."""
        if self.reasons:
            return UNDECIDABLE
        return PASS if all(clause.holds for clause in self.clauses) else FAIL


def decide(studies: Mapping[str, Study]) -> dict[str, Verdict]:
    """The verdict on each arm that was named before the run.

    An arm must beat both controls, so its p-value is the larger of the two (intersection-union). Holm's correction is
    over the arms, of which one that lacks a control counts with a p-value of 1. Where it multiplies an arm's p-value
    by some factor, the lower bounds that decide leave that much less beyond them: both are above zero exactly where
    the corrected p-value is at most 0.025. For one arm they are the lower ends of the 95 % intervals.

    Raises:
      ValueError: for more than four arms.
    """
    if len(studies) > MOST_ARMS:
        raise ValueError(f"{len(studies)} arms are named; the gate takes {MOST_ARMS} at most.")
    compared, reasons = {}, {}
    for name, study in studies.items():
        compared[name], reasons[name] = _compare_both(study)
    p_values = {name: _p_value(comparisons) for name, comparisons in compared.items()}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    verdicts = {}
    for name, study in studies.items():
        tail = TAIL * p_values[name] / adjusted[name]
        lows = {control: _low(study, found, tail) for control, found in compared[name].items()}
        clauses = (*_bounds(lows, tail), *_effects(compared[name].get(CONTINUED)))
        verdicts[name] = Verdict(clauses, compared[name], p_values[name], adjusted[name], tuple(reasons[name]))
    return verdicts


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given (Holm, 1979)."""
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def compare(arm: Panel, control: Panel, name: str) -> Comparison:
    """An arm against a control of the same seeds and tasks.

    Raises:
      ValueError: where the two don't pair.
    """
    found = difference(arm, control)
    gained, lost = (arm.solved & ~control.solved).sum(axis=1), (control.solved & ~arm.solved).sum(axis=1)
    return Comparison(
        control=name,
        tasks=found.tasks,
        solved=bootstrap_t(found),
        false_stop=bootstrap_t(difference(arm, control, "false_stop")),
        kept_solved=bootstrap_t(difference(arm, control, which=arm.start_solved)) if arm.start_solved.any() else None,
        splits={
            split: bootstrap_t(difference(arm, control, which=arm.split == split))
            for split in np.unique(arm.split).tolist()
        },
        seeds=tuple(
            SeedPair(seed, float(value), int(more), int(less), mcnemar_mid_p(int(more), int(less)))
            for seed, value, more, less in zip(arm.seeds, found.by_seed, gained, lost, strict=True)
        ),
        seed_std=sample_std(found.by_seed),
    )


def _compare_both(study: Study) -> tuple[dict[str, Comparison], list[str]]:
    """The comparisons that can be made, and why the gate can't decide, where it can't."""
    reasons = list(study.problems)
    comparisons: dict[str, Comparison] = {}
    if study.arm is None:
        return comparisons, reasons or ["There is no run of this arm."]
    if len(study.arm.seeds) < LEAST_SEEDS:
        reasons.append(f"The arm ran with {_counted(len(study.arm.seeds), 'seed')}; the gate needs {LEAST_SEEDS}.")
    if len(study.arm.task) < LEAST_TASKS:
        reasons.append(f"{_counted(len(study.arm.task), 'task')} were measured; the gate needs {LEAST_TASKS:,}.")
    if not study.arm.start_solved.any():
        reasons.append("No task is solved at its start, so whether solved ones are kept can't be seen.")
    for name, control in ((CONTINUED, study.continued), (SHUFFLED, study.shuffled)):
        if control is None:
            if not study.problems:
                reasons.append(f"There is no run of the control {name}.")
        elif control.seeds != study.arm.seeds:
            theirs, ours = (", ".join(map(str, panel.seeds)) for panel in (control, study.arm))
            reasons.append(f"The control {name} ran with the seeds {theirs}, the arm with {ours}.")
        elif not study.arm.same_tasks(control):
            reasons.append(f"The control {name} was measured on other tasks than the arm.")
        else:
            comparisons[name] = compare(study.arm, control, name)
    return comparisons, reasons


def _p_value(comparisons: Mapping[str, Comparison]) -> float:
    p_values = [comparisons[name].solved.p if name in comparisons else None for name in (CONTINUED, SHUFFLED)]
    return max(1.0 if p is None else p for p in p_values)


def _low(study: Study, comparison: Comparison, tail: float) -> float | None:
    """The lower bound of an arm's difference to a control with a share `tail` beyond it."""
    control = study.continued if comparison.control == CONTINUED else study.shuffled
    if tail == TAIL or study.arm is None or control is None:
        return comparison.solved.low
    return bootstrap_t(difference(study.arm, control), tail).low


def _bounds(lows: Mapping[str, float | None], tail: float) -> list[Clause]:
    """The clauses on chance: the arm is better than both controls."""
    detail = f"lower end of the {100 * (1 - 2 * tail):.4g} % interval"
    found = [(name, lows.get(name)) for name in (CONTINUED, SHUFFLED)]
    return [Clause(f"better than {name}", low, 0.0, low is not None and low > 0, detail) for name, low in found]


def _effects(found: Comparison | None) -> list[Clause]:
    """The clauses on size: what the arm gains on `bc_continued`, and what it may not lose."""
    if found is None:
        return [
            Clause(name, None, limit, False)
            for name, limit in (
                ("effect", LEAST_EFFECT),
                ("every seed", 0.0),
                ("false STOP", MOST_FALSE_STOP),
                ("kept solved", LEAST_KEPT),
                ("every split", LEAST_SPLIT),
            )
        ]
    seed = min(found.seeds, key=lambda pair: pair.difference)
    false_stop = found.false_stop.difference
    split, worst = min(found.splits.items(), key=lambda item: item[1].difference)
    return [
        _at_least("effect", found.solved.difference, LEAST_EFFECT),
        _at_least("every seed", seed.difference, 0.0, f"seed {seed.seed}"),
        Clause("false STOP", false_stop, MOST_FALSE_STOP, false_stop <= MOST_FALSE_STOP + _ROUNDING),
        _at_least("kept solved", found.kept_solved.difference if found.kept_solved else None, LEAST_KEPT),
        _at_least("every split", worst.difference, LEAST_SPLIT, split),
    ]


def _at_least(name: str, figure: float | None, limit: float, detail: str = "") -> Clause:
    return Clause(name, figure, limit, figure is not None and figure >= limit - _ROUNDING, detail)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
