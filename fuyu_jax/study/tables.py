"""The study's own tables, from its packed data."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuyu_jax.evaluate.metrics import BUDGET, COPIED_PHASE, sample_std
from fuyu_jax.gate import Panel
from fuyu_jax.gate.interval import bootstrap_t
from fuyu_jax.gate.panel import difference
from fuyu_jax.runs.comparison import marked
from fuyu_jax.runs.document import Table, code
from fuyu_jax.runs.wording import between, number, percent, points
from fuyu_jax.study.packing import COUNTS
from fuyu_jax.study.results import Results

Row = dict[str, Any]


def policies(results: Results, regime: str) -> Table:
    """Every cell of a regime: what its policies solve after copying and after the update, and what that cost."""
    header = ["cell", "seeds", "copied", "updated", "difference, points", "95 % interval", "false STOP", "kept solved"]
    header += ["valid edits", "edits"]
    rows = []
    for cell in results.cells(regime):
        copied, updated = both(results, regime, cell)
        change = bootstrap_t(difference(updated, copied))
        where = {"phase": str(results.about(regime, cell)["phase"]), "mode": "learned", "split": "all", "k": BUDGET}
        rows.append(
            [_title(results, regime, cell), str(len(updated.seeds)), _spread(copied), _spread(updated)]
            + [points(change.difference), between(change.low, change.high), percent(float(updated.false_stop.mean()))]
            + [kept(updated), percent(results.metric(regime, cell, "valid_edit_rate", **where))]
            + [number(results.metric(regime, cell, "mean_steps", **where))]
        )
    note = (
        "Learned mode at the budget of `accuracy_at_budget`; mean over seeds ± sample standard deviation. Valid edits "
        f"and edits are those at K={BUDGET}."
    )
    return Table(header, rows, note=note)


def splits(results: Results, regime: str) -> Table:
    """What each cell's updated policies solve of each split."""
    names: list[str] = []
    rows = []
    for cell in results.cells(regime):
        _, updated = both(results, regime, cell)
        names = np.unique(updated.split).tolist()
        shares = [percent(float(updated.solved[:, updated.split == name].mean())) for name in names]
        rows.append([_title(results, regime, cell), *shares])
    return Table(["cell", *names], rows)


def anatomy(results: Results, regime: str) -> Table:
    """Every recipe of the anatomy: the change against its own copied policies."""
    header = ["recipe", "seeds", "copied", "updated", "difference, points", "95 % interval", "false STOP, points"]
    header += ["valid edits, copied", "valid edits, updated"]
    rows = []
    for cell in results.cells(regime):
        copied, updated = both(results, regime, cell)
        change, stops = (bootstrap_t(difference(updated, copied, name)) for name in ("solved", "false_stop"))
        phase = str(results.about(regime, cell)["phase"])
        valid = [
            percent(results.metric(regime, cell, "valid_edit_rate", phase=at, mode="learned", split="all", k=BUDGET))
            for at in (COPIED_PHASE, phase)
        ]
        rows.append(
            [_title(results, regime, cell), str(len(updated.seeds)), _spread(copied), _spread(updated)]
            + [points(change.difference), between(change.low, change.high), points(stops.difference), *valid]
        )
    return Table(header, rows)


def used(results: Results) -> Table:
    """What a run of each cell used, on average."""
    rows = []
    for regime in results.plan.regimes:
        for cell in results.cells(regime):
            abouts = [results.data.about(run) for run in results.runs(regime, cell)]
            means = [[float(row[name]) for row in abouts if row[name] is not None] for name in COUNTS]
            rows.append([regime, cell, *(number(round(sum(some) / len(some))) if some else "" for some in means)])
    return Table(["regime", "cell", *COUNTS], rows, text_columns=2)


def what_ran(results: Results) -> list[str]:
    """A line a cell: the command of its first seed, and commits and machines of all."""
    lines = []
    for regime in results.plan.regimes:
        for cell in results.cells(regime):
            abouts = [results.data.about(run) for run in results.runs(regime, cell)]
            places = dict.fromkeys(f"commit {code(row['commit'])}, {code(row['machine'])}" for row in abouts)
            seeds = ", ".join(str(row["seed"]) for row in abouts)
            lines.append(
                f"{code(f'{regime}/{cell}')}, seeds {seeds}: {code(abouts[0]['options'])}; {'; '.join(places)}"
            )
    return lines


def chart_rows(results: Results, regime: str) -> list[Row]:
    """What the chart of a regime shows: a row a cell and moment."""
    rows = []
    for cell in results.cells(regime):
        for when, panel in zip(("after copying", "after the update"), both(results, regime, cell), strict=True):
            shares = panel.solved.mean(axis=1)
            limits = {"accuracy": float(shares.mean()), "least": float(shares.min()), "most": float(shares.max())}
            rows.append({"policy": _title(results, regime, cell), "when": when, "seeds": len(shares), **limits})
    return rows


def both(results: Results, regime: str, cell: str) -> tuple[Panel, Panel]:
    """The panels of a cell that was run: after copying, and after the last round."""
    copied, updated = (results.panel(regime, cell, which) for which in (True, False))
    assert copied is not None and updated is not None
    return copied, updated


def _title(results: Results, regime: str, cell: str) -> str:
    return marked(cell, results.sees_oracle(regime, cell))


def _spread(panel: Panel) -> str:
    shares = [float(share) for share in panel.solved.mean(axis=1)]
    std = sample_std(shares)
    return percent(sum(shares) / len(shares)) + ("" if std is None else f" ± {100 * std:.1f}")


def kept(panel: Panel) -> str:
    """The share of tasks solved at their start that are so in the end, or nothing where there are none."""
    return percent(float(panel.solved[:, panel.start_solved].mean())) if panel.start_solved.any() else ""
