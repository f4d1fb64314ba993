"""`report.md` and `report.html`: what a run found, beside what the original reported, from its folder's files alone.

Both are written from one document; the page adds the episode player.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from fuyu_jax.evaluate.metrics import BUDGET, COPIED_PHASE, HARD_BUDGET, HARD_SPLIT, last_update, round_of
from fuyu_jax.runs import markdown, original, page
from fuyu_jax.runs.document import Bullets, Code, Document, Fold, Heading, Image, Part, Section, Text, code
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.figures import Figure, draw_all, label
from fuyu_jax.runs.report_tables import (
    HEADLINE_HEADER,
    ORACLE_MARK,
    TARGETS_MARK,
    RunRecord,
    comparison_table,
    data_table,
    diagnostics_table,
    headline_table,
    modes_table,
    original_table,
    pairs_table,
    samples_table,
    signals_table,
    splits_table,
)
from fuyu_jax.runs.settings import PilotSettings
from fuyu_jax.runs.tables import write_atomically
from fuyu_jax.runs.wording import percent, points

REPORT = "report.md"
EPISODES = "episodes.jsonl"


def write_report(folder: Path) -> Path:
    """Draws the figures of a run folder and writes its `report.html` and its `report.md`, whose path is returned."""
    record = RunRecord.read(folder)
    document = make_document(record, draw_all(record.tables, folder / "figures"))
    write_atomically(folder / "report.html", page.render(document, folder, read_episodes(folder)).encode())
    path = folder / REPORT
    write_atomically(path, markdown.render(document).encode())
    return path


def read_episodes(folder: Path) -> list[dict[str, Any]]:
    """The episodes that a run recorded; none where it has no such file.

    Raises:
      UserError: where a line is damaged.
    """
    path = folder / EPISODES
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); copy the run again.") from None


def make_document(record: RunRecord, figures: Sequence[Figure]) -> Document:
    """The report as plain data."""
    config = record.config
    sections = [
        Section("Ours beside the original", _headline_parts(record)),
        Section(
            "The update against copying, task by task",
            [
                comparison_table(record),
                Text(
                    "Both policies meet the same tasks. The interval is Student's t over the differences of single "
                    "tasks; it says nothing about other seeds. Gained and lost count tasks that only the updated, or "
                    "only the copied policy solved."
                ),
            ],
        ),
        Section("Split by split (learned mode)", [splits_table(record)]),
    ]
    if (samples := samples_table(record)).rows:
        says = (
            f"The share of tasks that at least one of eight sampled rollouts at K = {BUDGET} solves: what the policy "
            "can reach, were there somebody to pick."
        )
        sections.append(Section("With eight samples a task", [samples, Text(says)]))
    signals = signals_table(record)
    sections += [
        Section(
            "Every phase and mode",
            [
                modes_table(record),
                Text(
                    "`forced` never stops, `learned` stops when the STOP head says at least 0.5, `value_gated` asks "
                    "the distance head too, `verified` stops when the public targets are met."
                ),
            ],
        ),
        Section("Signals of the last round", [signals if signals.rows else Text("This arm samples no rollouts.")]),
        Section(
            "Training diagnostics",
            [
                diagnostics_table(record),
                Text("Every phase is measured on the same two sets of states, so its rows can be compared."),
            ],
        ),
        Section("Figures", [part for figure in figures for part in _figure_parts(figure)]),
        Section("What ran", _origin_parts(record)),
        Section("How to read this folder", [Bullets(_FILES)]),
    ]
    title = f"{label(config['arm'])}, preset {config['preset']}, seed {config['seed']}"
    return Document(title, answer(record), sections)


def answer(record: RunRecord) -> str:
    """One sentence: whether the update made the copied policy better, with the paired interval."""
    found = [row for row in record.results["comparisons"] if row["split"] == "all" and row["mode"] == "learned"]
    if not found:
        rows = [row for row in record.tables.headline if (row["phase"], row["mode"]) == (COPIED_PHASE, "learned")]
        solved = percent(rows[0]["accuracy_at_budget"]) if rows else ""
        if last_update(row["phase"] for row in record.tables.metrics) is not None:
            return f"The update was not measured at K={BUDGET}; --budgets with {BUDGET} and {HARD_BUDGET} compares it."
        return f"No decision update was run; copying alone solves {solved or 'an unmeasured share'} of the tasks."
    row = found[0]
    verdict = {
        "better": "The update made the policy better",
        "worse": "The update made the policy worse",
        "undecided": "Whether the update made the policy better is undecided",
    }[row["verdict"]]
    budget = "" if row["endpoint"] == "accuracy_at_budget" else f" at K={BUDGET}"
    limits = f"95 % paired interval {points(row['low'])} to {points(row['high'])}, {row['tasks']:,} tasks"
    rounds = round_of(row["phase"])
    return (
        f"{verdict}: after {rounds} round{'s' if rounds != 1 else ''} of {label(row['arm'])}, the learned mode solves "
        f"{percent(row['accuracy'])} of the tasks{budget} against {percent(row['base_accuracy'])} after copying, "
        f"a difference of {points(row['difference'])} points ({limits})."
    )


def headline_text(folder: Path) -> str:
    """The answer and the headline table of a run folder, for a terminal."""
    record = RunRecord.read(folder)
    narrow = [HEADLINE_HEADER.index(name) for name in _TERMINAL_HEADER]
    cells = [[row[column] for column in narrow] for row in headline_table(record).rows]
    return f"{answer(record)}\n\n{tabulate(cells, _TERMINAL_HEADER, disable_numparse=True)}"


_TERMINAL_HEADER = ["policy", "mode", "mean_accuracy_k048", "accuracy_at_budget (95 %)", "original: mean, K=0, 4, 8"]

_FILES = (
    "`report.html`: this report as one page that opens offline, with a player of episodes.",
    "`metrics.csv`: one row an arm, phase, mode, split and budget; `outcomes.csv`: one row a task, from which all of "
    "it can be recomputed.",
    "`train_log.csv`: losses (`update`), rollout signals (`signals`) and diagnostics (`diagnostics`), told apart by "
    "the column `kind`.",
    f"`{EPISODES}`: the last policy's episodes on the first tasks of each split, with what it thought at every step.",
    "`results.json`: the headline, paired comparisons and counts; `config.json` and `dataset_manifest.json`: all that "
    "made them.",
)


def _headline_parts(record: RunRecord) -> list[Part]:
    notes = [
        "`mean_accuracy_k048`: mean over the budgets K = 0, 4, 8 and the five splits, as the original counted. K = 0 "
        "runs no policy at all.",
        f"`accuracy_at_budget`: all splits at K = {BUDGET}, `{HARD_SPLIT}` at K = {HARD_BUDGET}, with Wilson's "
        "interval at 95 %. This is the figure to compare.",
        "Doing nothing solves what needs no repair; a policy below that line does harm.",
        f"The original's figures come from the {original.SOURCE}: {original.SETUP}. Its tasks are not these tasks, so "
        "the columns show the shape of the effect and not a contest.",
        f"{TARGETS_MARK} sees the public targets or the reference, which the other rows do not: compare it with its "
        "own kind only.",
    ]
    if record.marked:
        told = "this update learned from the oracle's labels beyond the copied demonstrations."
        notes.insert(4, f"{ORACLE_MARK} {told}")
    return [headline_table(record), Bullets(notes), Fold("The original's whole headline table", original_table())]


def _figure_parts(figure: Figure) -> list[Part]:
    parts: list[Part] = [
        Heading(figure.title),
        Image(f"figures/{figure.name}.png", figure.title),
        Text(figure.reading),
        Fold(f"Data (figures/{figure.name}.csv)", data_table(figure.rows)),
    ]
    return [*parts, Fold("The original's data", data_table(figure.original))] if figure.original else parts


def _origin_parts(record: RunRecord) -> list[Part]:
    manifest = record.manifest
    git, devices = manifest["git"], manifest["devices"]
    changed = ", with local changes" if git["dirty"] else ""
    parts: list[Part] = [
        Text("Repeat it with"),
        Code(PilotSettings.from_dict(record.config).command()),
        Text(f"The command as it was given: {code(manifest['command'])}"),
        Bullets(
            [
                f"Commit {code(git['commit'])}{changed}",
                f"Python {code(manifest['python'])}",
                *(f"Device {code(device['platform'])} ({code(device['kind'])})" for device in devices),
            ]
        ),
    ]
    values = {
        "Settings": record.config,
        "Model": manifest.get("model", {}),
        "Counts": record.results.get("counts", {}),
        "Machine": manifest["machine"],
        "Versions": manifest["packages"],
    }
    for title, pairs in values.items():
        parts += [Heading(title), pairs_table(pairs)] if pairs else []
    return parts
