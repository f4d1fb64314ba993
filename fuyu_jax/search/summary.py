"""What a comparison of searches leaves behind: tables, charts and the text that is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuyu_jax.evaluate.metrics import ALL_SPLITS
from fuyu_jax.runs import plotting
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.markdown import table
from fuyu_jax.runs.wording import interval, points
from fuyu_jax.search.curves import (
    AREA_COLUMNS,
    CURVE_COLUMNS,
    DIFFERENCE_COLUMNS,
    OUTCOME_COLUMNS,
    RATIO_COLUMNS,
    TIMING_COLUMNS,
    Curve,
    Label,
    area_row,
    curve_rows,
    difference_rows,
    pooled,
    ratio_rows,
)
from fuyu_jax.search.found import Found
from fuyu_jax.search.report import write_report

BASE = "policy_value"  # which the other methods are compared with
RATIO_BUDGET = 128  # at whose rate the others' executions are counted, or the next below

Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """One method on one split.

    Attributes:
      label: whose it is.
      curves: by cost.
      found: as the search reported it.
      seconds: of the search, compilation left out.
    """

    label: Label
    curves: dict[str, Curve]
    found: Found
    seconds: float


def write_results(folder: RunFolder, measured: Sequence[Measured], budgets: Sequence[int]) -> str:
    """Writes all tables and charts to a folder, and returns a table over all splits.

    Args:
      folder: where they go.
      measured: every method on every split.
      budgets: those that all methods share, over which areas and differences are taken.
    """
    curves = _with_all(measured)
    rows = [row for (label, _), curve in curves.items() for row in curve_rows(label, curve)]
    shared = {key: curve.up_to(budgets[-1]) for key, curve in curves.items()}
    areas = [area_row(label, curve) for (label, _), curve in shared.items()]
    differences = [
        row
        for (label, cost), curve in shared.items()
        if label.method != BASE and (base := shared.get((label._replace(method=BASE), cost))) is not None
        for row in difference_rows(label, BASE, curve, base)
    ]
    ratios = _ratios(curves, budgets)
    folder.write_csv("search.csv", CURVE_COLUMNS, rows)
    folder.write_csv("areas.csv", AREA_COLUMNS, areas)
    folder.write_csv("differences.csv", DIFFERENCE_COLUMNS, differences)
    folder.write_csv("ratios.csv", RATIO_COLUMNS, ratios)
    folder.write_csv("outcomes.csv", OUTCOME_COLUMNS, [row for one in measured for row in _outcome_rows(one)])
    folder.write_csv("timing.csv", TIMING_COLUMNS, [row for one in measured for row in _timing_rows(one)])
    tables = {"search": rows, "areas": areas, "differences": differences, "ratios": ratios}
    folder.write_json("results.json", tables)
    _draw(folder, rows, budgets[-1])
    write_report(folder.path, BASE)
    folder.log(f"searched with {len({one.label.method for one in measured})} methods")
    return _text(rows, areas, differences, budgets)


def _with_all(measured: Sequence[Measured]) -> dict[tuple[Label, str], Curve]:
    """The curves by label and cost, and for every method and number of public examples that of all splits together."""
    curves = {(one.label, cost): curve for one in measured for cost, curve in one.curves.items()}
    parts: dict[tuple[Label, str], list[Curve]] = {}
    for (label, cost), curve in curves.items():
        parts.setdefault((label._replace(split=ALL_SPLITS), cost), []).append(curve)
    return curves | {key: pooled(several) for key, several in parts.items()}


def _ratios(curves: dict[tuple[Label, str], Curve], budgets: Sequence[int]) -> list[Row]:
    """The rows of `ratios.csv`: a method's executions for the rate that `BASE` has at `RATIO_BUDGET`."""
    at = max((budget for budget in budgets if budget <= RATIO_BUDGET), default=budgets[0])
    rows = []
    for label in dict.fromkeys(label for label, _ in curves if label.method == BASE):
        beside = {
            other.method: curve
            for (other, cost), curve in curves.items()
            if cost == "executions" and other[1:] == label[1:]
        }
        for row in ratio_rows(beside, BASE, at):
            rows.append({"split": label.split, "public": label.public, "base": BASE, "budget": at, **row})
    return rows


def _outcome_rows(one: Measured) -> list[Row]:
    """The rows of `outcomes.csv`, one a task, from which the other tables follow."""
    letters = {f"by_{cost}": curve.letters() for cost, curve in one.curves.items()}
    return [
        {
            **one.label._asdict(),
            "task": task,
            "executions": int(one.found.executions[task]),
            "passes": int(one.found.passes[task]) if "by_passes" in letters else None,
            **{name: texts[task] for name, texts in letters.items()},
            "edits": " ".join(str(edit) for edit in one.found.actions[task].tolist() if edit),
        }
        for task in range(len(one.found.executions))
    ]


def _timing_rows(one: Measured) -> list[Row]:
    """The rows of `timing.csv`: what a task takes up to each budget, at the method's own rate of executions."""
    executions = np.asarray(one.found.executions)
    rate = one.seconds / max(int(executions.sum()), 1)
    rows = []
    for budget in one.curves["executions"].budgets:
        mean = float(np.minimum(executions, budget).mean())
        row = {"budget": budget, "n": len(executions), "mean_executions": mean, "mean_seconds": mean * rate}
        rows.append({**one.label._asdict(), **row})
    return rows


def _draw(folder: RunFolder, rows: Sequence[Row], last: int) -> None:
    """Solve rates over what was spent, a chart a split; and at the `last` shared budget how many answers are wrong."""
    figures = folder.path / "figures"
    figures.mkdir()
    most = max(row["public"] for row in rows)
    for cost, what in (("executions", "programs executed"), ("passes", "forward passes")):
        for split in dict.fromkeys(row["split"] for row in rows):
            shown = [row for row in rows if (row["cost"], row["split"], row["public"]) == (cost, split, most)]
            axis = plotting.Axis(
                title=f"Tasks solved by search: {split}",
                x="log2",
                series="method",
                y="solve_rate",
                ylabel="right on hidden examples too",
                xlabel=f"log2 of {what}",
            )
            plotting.lines(
                figures / f"{cost}_{split}.png", axis, [row | {"log2": float(np.log2(row["budget"]))} for row in shown]
            )
    spurious = plotting.Axis(
        title="Answers that fail a hidden example",
        x="public",
        series="method",
        y="spurious_rate",
        ylabel="share of the answers",
        xlabel="public examples that judge",
        low="spurious_low",
        high="spurious_high",
    )
    several = {row["method"] for row in rows if row["public"] < most}
    bars = [
        row
        for row in sorted(rows, key=lambda row: row["public"])
        if (row["cost"], row["split"], row["budget"]) == ("executions", ALL_SPLITS, last) and row["method"] in several
    ]
    plotting.bars(figures / "spurious.png", spurious, bars)


def _text(rows: Sequence[Row], areas: Sequence[Row], differences: Sequence[Row], budgets: Sequence[int]) -> str:
    """Solve rates over all splits, a line a method and a column a number of executions."""
    most = max(row["public"] for row in rows)
    whole = {"split": ALL_SPLITS, "cost": "executions", "public": most}
    mine = [row for row in rows if whole.items() <= row.items()]
    rates = {(row["method"], row["budget"]): row for row in mine}
    area = {row["method"]: row["area"] for row in areas if whole.items() <= row.items()}
    gaps = {row["method"]: row for row in differences if whole.items() <= row.items() and "budget" not in row}
    lines = []
    for method in dict.fromkeys(row["method"] for row in mine):
        cells = [rates[method, budget] for budget in budgets]
        gap = gaps.get(method)
        ends = "" if gap is None or gap["low"] is None else f" ({points(gap['low'])} to {points(gap['high'])})"
        lines.append(
            [
                method,
                *(interval(cell["solve_rate"], cell["low"], cell["high"]) for cell in cells),
                f"{area[method]:.3f}",
                "" if gap is None else f"{points(gap['difference'])}{ends}",
            ]
        )
    return table(["executions", *map(str, budgets), "area", f"area less {BASE}'s, points"], lines)
