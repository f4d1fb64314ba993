"""`search.md`: what a comparison of searches found, from the tables in its folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuyu_jax.evaluate.metrics import ALL_SPLITS
from fuyu_jax.runs import markdown
from fuyu_jax.runs.document import Bullets, Document, Image, Part, Section, Table, Text, code
from fuyu_jax.runs.tables import read_table, write_atomically
from fuyu_jax.runs.wording import between, interval, number, percent, points

NAME = "search.md"
Row = Mapping[str, Any]


def write_report(folder: Path, base: str) -> Path:
    """Writes the report of a folder whose tables are there, against the method `base`, and returns its path."""
    tables = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    tables["timing"] = read_table(folder / "timing.csv", ("method", "split"))
    manifest, config = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("dataset_manifest.json", "config.json")
    )
    path = folder / NAME
    write_atomically(path, markdown.render(make_document(tables, manifest, config, base)).encode())
    return path


def make_document(
    tables: Mapping[str, Sequence[Row]], manifest: Mapping[str, Any], config: Mapping[str, Any], base: str
) -> Document:
    """The report as plain data.

    Args:
      tables: rows of `search`, `areas`, `differences`, `ratios` and `timing`.
      manifest: of the folder.
      config: of the folder.
      base: the method that others are compared with.
    """
    curves = tables["search"]
    most = max(row["public"] for row in curves)
    ran = [row for row in curves if row["cost"] == "executions" and row["public"] == most]
    splits = list(dict.fromkeys(row["split"] for row in ran))
    sections = [
        Section(_title(split), [_rates(ran, split), Image(f"figures/executions_{split}.png", "Solved by executions")])
        for split in [ALL_SPLITS, *(split for split in splits if split != ALL_SPLITS)]
    ]
    sections += [
        Section("What the heuristic is worth", _worth(tables, most, base)),
        Section("Executions for the same rate", _ratios(tables["ratios"], most, base)),
        Section("Wrong answers by the number of examples that judge", _spurious(curves)),
        Section("Seconds", [_seconds(tables["timing"], most)]),
        Section("What ran", [Bullets(_origin(manifest, config))]),
    ]
    return Document("Verified search", _answer(ran, base), sections)


def _answer(ran: Sequence[Row], base: str) -> str:
    """One sentence: what the base method solves at each budget, over all splits."""
    mine = [row for row in ran if (row["method"], row["split"]) == (base, ALL_SPLITS)]
    rates = ", ".join(f"{percent(row['solve_rate'])} with {row['budget']:,}" for row in mine)
    return f"Of {mine[0]['n']:,} tasks {base} solves {rates} programs executed a task at most."


def _title(split: str) -> str:
    return "All splits" if split == ALL_SPLITS else split


def _rates(ran: Sequence[Row], split: str) -> Table:
    mine = [row for row in ran if row["split"] == split]
    budgets = sorted({row["budget"] for row in mine})
    cell = {(row["method"], row["budget"]): interval(row["solve_rate"], row["low"], row["high"]) for row in mine}
    methods = dict.fromkeys(row["method"] for row in mine)
    rows = [[method, *(cell.get((method, budget), "") for budget in budgets)] for method in methods]
    return Table(["at most", *(f"{budget:,}" for budget in budgets)], rows, note="Wilson's 95 % intervals.")


def _worth(tables: Mapping[str, Sequence[Row]], most: int, base: str) -> list[Part]:
    """Areas under the curves, and how far each method's lies from the base's."""
    area = {(row["method"], row["split"]): row for row in tables["areas"] if _counts(row, most)}
    gap = {(row["method"], row["split"]): row for row in tables["differences"] if _counts(row, most) and _whole(row)}
    rows = []
    for (method, split), found in area.items():
        less = gap.get((method, split))
        rows.append(
            [split, method, f"{found['area']:.3f}", "" if less is None else points(less["difference"])]
            + ["" if less is None else between(less["low"], less["high"])]
        )
    rows.sort(key=lambda row: row[0])
    header = ["split", "method", "area", f"less {base}'s, points", "95 % interval"]
    says = "Area under solve rate over log2 of the executions, as a share of the whole: 1 solves all with the first."
    return [Text(says), Table(header, rows, text_columns=2)]


def _ratios(rows: Sequence[Row], most: int, base: str) -> list[Part]:
    shown = [row for row in rows if row["public"] == most]
    at = shown[0]["budget"] if shown else 0
    cells = [
        [row["split"], row["method"], percent(row["rate"]), number(row["executions"]), _times(row)] for row in shown
    ]
    header = ["split", "method", f"rate of {base} at {at}", "executions", "times as many"]
    return [
        Table(header, cells, text_columns=2, note="`>` where a method never reached the rate with all it was given.")
    ]


def _times(row: Row) -> str:
    return f"> {number(row['at_least'])}" if row["times"] is None else number(row["times"])


def _spurious(curves: Sequence[Row]) -> list[Part]:
    several = {row["method"] for row in curves if row["public"] == 1}
    largest: dict[str, int] = {}
    for row in curves:
        if row["method"] in several and row["cost"] == "executions":
            largest[row["method"]] = max(largest.get(row["method"], 0), row["budget"])
    last = min(largest.values(), default=0)
    cells = [
        [row["method"], str(row["public"]), percent(row["accepted_rate"])]
        + [interval(row["spurious_rate"], row["spurious_low"], row["spurious_high"])]
        for row in sorted(curves, key=lambda row: (row["method"], row["public"]))
        if row["method"] in several and (row["cost"], row["split"], row["budget"]) == ("executions", ALL_SPLITS, last)
    ]
    says = f"All splits, with {last:,} executions: answers, and which share of them fails a hidden example."
    return [Text(says), Table(["method", "examples", "answered", "wrong"], cells, text_columns=2)]


def _seconds(timing: Sequence[Row], most: int) -> Table:
    mine = [row for row in timing if row["public"] == most]
    last = {(row["method"], row["split"]): row for row in mine}
    cells = [
        [method, split, number(row["budget"]), number(row["mean_executions"]), number(row["mean_seconds"])]
        for (method, split), row in last.items()
    ]
    note = "Mean of a task up to the method's largest budget, compilation left out."
    return Table(["method", "split", "budget", "executions", "seconds"], cells, text_columns=2, note=note)


def _origin(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    git, machine = manifest["git"], manifest["machine"]
    changed = ", with local changes" if git["dirty"] else ""
    words = shlex.split(manifest["command"])
    script = next((at for at, word in enumerate(words) if word.endswith(".py")), 0)
    return [
        f"The search: {code(shlex.join(['python', *words[script:]]))}",
        f"The policy {code(config['phase'])}: {code(config['policy'])}",
        f"Commit {code(git['commit'])}{changed}; {machine['processor']}, {machine['cores']} cores",
    ]


def _counts(row: Row, most: int) -> bool:
    return bool(row["cost"] == "executions" and row["public"] == most)


def _whole(row: Row) -> bool:
    """Whether a row of differences is that of the areas."""
    return row.get("budget") is None
