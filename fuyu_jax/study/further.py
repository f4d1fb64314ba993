"""What was measured beside the study's runs: the oracles' headroom and verified search, from their committed tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuyu_jax.evaluate.metrics import ALL_SPLITS, BUDGET, COPIED_PHASE, ORIGINAL_BUDGETS
from fuyu_jax.runs import original
from fuyu_jax.runs.document import Heading, Image, Part, Section, Table, Text
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.tables import read_table
from fuyu_jax.runs.wording import percent
from fuyu_jax.study.beside_original import CELLS
from fuyu_jax.study.results import Results

HEADROOM, SEARCH = "headroom", "search"  # what the folders are called beside the report's
Row = Mapping[str, Any]


def sections(results: Results, folder: Path, report: Path) -> list[Section]:
    """What `folder` holds of `headroom/` and `search/`; charts are named by their path from the report's folder.

    Raises:
      UserError: where a table is damaged.
    """
    found: list[Section] = []
    if (table := folder / HEADROOM / "headroom.csv").exists():
        chart = Image(os.path.relpath(folder / HEADROOM / "headroom.png", report), "Solved against the edit budget")
        found.append(Section("Headroom, and the oracle against the budget", [*_headroom(results, _read(table)), chart]))
    if (table := folder / SEARCH / "search.csv").exists():
        chart = Image(os.path.relpath(folder / SEARCH / "figures" / "executions_all.png", report), "Solved by search")
        found.append(Section("Verified search", [*_search(_read(table)), chart]))
    return found


def _read(path: Path) -> list[Row]:
    try:
        return list(read_table(path, ("method", "split", "cost")))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it.") from None


def _headroom(results: Results, rows: Sequence[Row]) -> list[Part]:
    """The original's two charts of its oracle, row by row, beside ours."""
    rate = {(row["method"], row["split"], row["k"]): row["solve_rate"] for row in rows}
    cell = CELLS[original.GRPO]
    regime = next((regime for regime in results.plan.regimes if results.runs(regime, cell)), None)
    ends = []
    for row in original.HEADROOM:
        split = row["split"]
        where = {"phase": COPIED_PHASE, "mode": "learned", "split": split, "k": BUDGET}
        copied = results.metric(regime, cell, "accuracy", **where) if regime else None
        ours = [rate.get(("do_nothing", split, BUDGET)), copied]
        ours += [rate.get((oracle, split, BUDGET)) for oracle in ("oracle_reference", "oracle_search")]
        theirs = [row["do_nothing"], row["bc_policy"], row["oracle"]]
        ends.append([split, *(percent(share) for share in (*theirs, *ours))])
    header = ["split", *(f"{name}, original" for name in ("do nothing", "copied policy", "oracle"))]
    header += [f"{name}, ours" for name in ("do nothing", "copied policy", "oracle (reference)", "oracle (search)")]
    budgets = []
    for k in ORIGINAL_BUDGETS:
        original_rate = next(row for row in original.ORACLE if row["k"] == k)
        for split in (row["split"] for row in original.HEADROOM):
            ours = [rate.get((oracle, split, k)) for oracle in ("oracle_reference", "oracle_search", "oracle_exact")]
            budgets.append([split, str(k), percent(original_rate[split]), *(percent(share) for share in ours)])
    said = (
        "`oracle (reference)` knows the reference and spends an edit on each field that is wrong; `oracle (search)` "
        "knows the targets only and tries edits with a beam, of which `oracle (exact)` is the part that leaves nothing "
        "out, programs within two edits. The copied policy is the one that the original's recipe copied here."
    )
    return [
        Text(said),
        Heading(f"Headroom of each split, K={BUDGET}"),
        Table(header, ends),
        Heading("Oracle against the budget"),
        Table(
            ["split", "K", "original", *(f"oracle ({name}), ours" for name in ("reference", "search", "exact"))],
            budgets,
            text_columns=2,
        ),
    ]


def _search(rows: Sequence[Row]) -> list[Part]:
    """What each search solves of all splits for the programs it runs, with every public example as judge."""
    most = max(row["public"] for row in rows)
    mine = [row for row in rows if (row["cost"], row["split"], row["public"]) == ("executions", ALL_SPLITS, most)]
    budgets = sorted({row["budget"] for row in mine})
    rate = {(row["method"], row["budget"]): row["solve_rate"] for row in mine}
    lines = [
        [method, *(percent(rate.get((method, budget))) for budget in budgets)]
        for method in dict.fromkeys(row["method"] for row in mine)
    ]
    note = "Share of all tasks that are solved on hidden examples too, by the most programs executed for a task."
    return [Table(["programs", *(f"{budget:,}" for budget in budgets)], lines, note=note)]
