"""`report.md`: what a run found, beside what the original experiment reported, from the run folder's files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from tabulate import tabulate

from fuyu_jax.evaluate.metrics import BUDGET, COPIED_PHASE, HARD_BUDGET, HARD_SPLIT, last_update, round_of
from fuyu_jax.runs import original
from fuyu_jax.runs.figures import BASELINE_ARM, Figure, RunTables, draw_all, label
from fuyu_jax.runs.markdown import data_table, escape, interval, number, percent, points, table
from fuyu_jax.runs.settings import PilotSettings, sees_oracle_labels
from fuyu_jax.runs.tables import (
    DIAGNOSTIC_COLUMNS,
    METRICS_TEXT,
    SIGNAL_COLUMNS,
    TRAIN_LOG_TEXT,
    read_table,
    write_atomically,
)

Row = Mapping[str, Any]

REPORT = "report.md"
ORACLE_MARK = "†"  # learned from the oracle beyond the demonstrations
TARGETS_MARK = "‡"  # sees the public targets, or more


@dataclass(frozen=True)
class RunRecord:
    """A finished run as plain data.

    Attributes:
      tables: rows of `metrics.csv` and `train_log.csv`, and the headline rows.
      config: `config.json`.
      manifest: `dataset_manifest.json`.
      results: `results.json`: `headline`, `comparisons`, `extra_metrics` and, where the run counted them, `counts`.
    """

    tables: RunTables
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    results: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """The record of a run folder."""
        config, manifest, results = (
            json.loads((folder / name).read_text(encoding="utf-8"))
            for name in ("config.json", "dataset_manifest.json", "results.json")
        )
        metrics = read_table(folder / "metrics.csv", METRICS_TEXT)
        train_log = read_table(folder / "train_log.csv", TRAIN_LOG_TEXT)
        return cls(RunTables(metrics, train_log, results["headline"]), config, manifest, results)


def write_report(folder: Path) -> Path:
    """Draws the figures of a run folder and writes its `report.md`, whose path is returned."""
    record = RunRecord.read(folder)
    figures = draw_all(record.tables, folder / "figures")
    path = folder / REPORT
    write_atomically(path, render_report(record, figures).encode())
    return path


def render_report(record: RunRecord, figures: Sequence[Figure]) -> str:
    """The Markdown text of the report."""
    environment = Environment(
        loader=PackageLoader("fuyu_jax.runs"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"escape_markdown": escape, "data_table": data_table}
    return environment.get_template("report.md.j2").render(
        arm=label(record.config["arm"]),
        config=record.config,
        manifest=record.manifest,
        command=PilotSettings.from_dict(record.config).command(),
        answer=answer(record),
        headline=headline_table(record),
        comparison=comparison_table(record),
        modes=modes_table(record),
        splits=splits_table(record),
        samples=samples_table(record),
        signals=signals_table(record),
        diagnostics=diagnostics_table(record),
        original=original,
        original_headline=_original_headline(),
        settings=_pairs(record.config),
        machine=_pairs(record.manifest["machine"]),
        packages=_pairs(record.manifest["packages"]),
        model=_pairs(record.manifest.get("model", {})),
        counts=_pairs(record.results.get("counts", {})),
        figures=figures,
        marked=_marked(record),
        oracle_mark=ORACLE_MARK,
        targets_mark=TARGETS_MARK,
        budget=BUDGET,
        hard_budget=HARD_BUDGET,
        hard_split=HARD_SPLIT,
    )


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
    narrow = [_HEADLINE_HEADER.index(name) for name in _TERMINAL_HEADER]
    cells = [[row[column] for column in narrow] for row in _headline_cells(record)]
    return f"{answer(record)}\n\n{tabulate(cells, _TERMINAL_HEADER, disable_numparse=True)}"


def headline_table(record: RunRecord) -> str:
    """The copied and the last policy, doing nothing and the oracle, beside the original's figures."""
    return table(_HEADLINE_HEADER, _headline_cells(record), text_columns=2)


def _headline_cells(record: RunRecord) -> list[list[str]]:
    last = last_update(row["phase"] for row in record.tables.headline)
    wanted = [("do_nothing", None), (COPIED_PHASE, COPIED_PHASE)]
    if last is not None:
        wanted.append((last, "grpo_echo_r1_policy" if record.config["arm"] == "grpo_echo" else None))
    wanted.append(("oracle_reference", "oracle_teacher"))
    return [
        [*_policy_cells(record, row), *_original_cells(theirs, row["mode"])]
        for phase, theirs in wanted
        for row in record.tables.headline
        if row["phase"] == phase and (row["mode"] != "verified" or row["arm"] == BASELINE_ARM)
    ]


def modes_table(record: RunRecord) -> str:
    """Every phase and mode that was measured."""
    return table(_POLICY_HEADER, [_policy_cells(record, row) for row in record.tables.headline], text_columns=2)


def comparison_table(record: RunRecord) -> str:
    """The last policy against the copied one, paired by task: each split in learned mode, all splits in every mode."""
    cells = [
        [
            escape(row["split"]),
            _mode(row["mode"]),
            percent(row["base_accuracy"]),
            percent(row["accuracy"]),
            points(row["difference"]),
            f"{points(row['low'])} to {points(row['high'])}",
            f"{row['gained']} / {row['lost']}",
            number(row["mcnemar_mid_p"]),
            row["verdict"],
        ]
        for row in record.results["comparisons"]
        if row["mode"] == "learned" or row["split"] == "all"
    ]
    header = ["split", "mode", "copied", "updated", "difference, points", "95 % interval", "gained / lost"]
    return table([*header, "McNemar mid-p", "verdict"], cells, text_columns=2)


def splits_table(record: RunRecord) -> str:
    """Accuracy on each split at its budget in learned mode, with every baseline; pairs counted for `fresh_paired`."""
    last = last_update(row["phase"] for row in record.tables.metrics)
    phases = [
        "do_nothing",
        "random_valid",
        COPIED_PHASE,
        *([last] if last else []),
        "oracle_search",
        "oracle_reference",
    ]
    rows = [row for row in record.tables.metrics if row["arm"] == BASELINE_ARM or row["mode"] == "learned"]
    cells = []
    for split in dict.fromkeys(row["split"] for row in rows if row["split"] != "all"):
        budget = HARD_BUDGET if split == HARD_SPLIT else BUDGET
        line = [escape(split), str(budget)]
        for phase in phases:
            found = [row for row in rows if (row["split"], row["phase"], row["k"]) == (split, phase, budget)]
            line.append(interval(*(found[0][name] for name in _ACCURACY)) if found else "")
        cells.append(line)
    pairs = [
        f"{_name(record, row)} {interval(*(row[name] for name in _PAIR_ACCURACY))}"
        for row in record.results["extra_metrics"]
        if row["mode"] == "learned" and row["k"] == BUDGET and row.get("pair_accuracy") is not None
    ]
    note = f"\n\nBoth tasks of a `fresh_paired` pair solved at K={BUDGET}: {'; '.join(pairs)}." if pairs else ""
    header = ["split", "K", *(_name(record, {"arm": _arm_of(record, phase), "phase": phase}) for phase in phases)]
    return table(header, cells) + note


def samples_table(record: RunRecord) -> str:
    """Share of tasks that one of eight sampled rollouts or more solves, by phase and split, where that was measured."""
    rates = record.results.get("pass_at_8", {})
    splits = list(dict.fromkeys(split for by_split in rates.values() for split in by_split))
    cells = [
        [_name(record, {"arm": _arm_of(record, phase), "phase": phase}), *(percent(found.get(name)) for name in splits)]
        for phase, found in rates.items()
    ]
    return table(["policy", *map(escape, splits)], cells) if cells else ""


def signals_table(record: RunRecord) -> str:
    """What the last round's rollouts showed, beside the original's."""
    rounds = [row for row in record.tables.train_log if row["kind"] == "signals"]
    if not rounds:
        return "*This arm samples no rollouts.*"
    cells = [
        [escape(name.replace("_", " ")), _signal(name, rounds[-1].get(name)), _signal(name, original.SIGNALS.get(name))]
        for name in SIGNAL_COLUMNS
        if rounds[-1].get(name) is not None or name in original.SIGNALS
    ]
    return table(["signal", f"round {len(rounds)}", "original, shaped GRPO + ECHO"], cells)


def diagnostics_table(record: RunRecord) -> str:
    """The training diagnostics of each phase on both fixed sets of states."""
    rows = [row for row in record.tables.train_log if row["kind"] == "diagnostics"]
    names = [name for name in DIAGNOSTIC_COLUMNS[1:] if any(row.get(name) is not None for row in rows)]
    cells = [
        [
            escape(label(row["phase"])),
            escape(label(row["state_set"])),
            *(_signal(name, row.get(name)) for name in names),
        ]
        for row in rows
    ]
    return table(["phase", "states", *(name.replace("_", " ") for name in names)], cells, text_columns=2)


# Columns of the training log that are shares, shown as percent.
_SHARES = (
    "rollout_success", "reachable_after", "destroyed_reachability", "false_stop", "zero_spread_groups",
    *(name for name in DIAGNOSTIC_COLUMNS if name.endswith("accuracy") or name.startswith("recall")),
)  # fmt: skip
_PAIR_ACCURACY = ("pair_accuracy", "pair_accuracy_low", "pair_accuracy_high")
_ACCURACY = ("accuracy", "accuracy_low", "accuracy_high")
_POLICY_HEADER = [
    "policy",
    "mode",
    "mean_accuracy_k048",
    "K=8",
    "accuracy_at_budget (95 %)",
    "false STOP",
    "edits",
]
_HEADLINE_HEADER = [*_POLICY_HEADER, "original: mean, K=0, 4, 8", "original: K=8", "original: false STOP"]
_TERMINAL_HEADER = ["policy", "mode", "mean_accuracy_k048", "accuracy_at_budget (95 %)", "original: mean, K=0, 4, 8"]


def _policy_cells(record: RunRecord, row: Row) -> list[str]:
    return [
        _name(record, row),
        _mode(row["mode"]),
        percent(row["mean_accuracy_k048"]),
        percent(row["k8_accuracy"]),
        interval(row["accuracy_at_budget"], row["low"], row["high"]),
        percent(row["false_stop_rate_k048"]),
        number(row["mean_steps_k048"]),
    ]


def _original_cells(phase: str | None, mode: str) -> list[str]:
    for row in original.HEADLINE:
        if row["arm"] == original.GRPO and row["phase"] == phase and row["mode"] in (mode, "k=8"):
            return [percent(row[name]) for name in ("mean_accuracy", "k8_accuracy", "false_stop_rate")]
    return ["", "", ""]


def _original_headline() -> str:
    names = ("mean_accuracy", "k8_accuracy", "false_stop_rate")
    cells = [
        [row["arm"], escape(row["phase"]), escape(row["mode"]), *map(percent, (row[name] for name in names))]
        + [f"{row['mean_steps']:.2f}"]
        for row in original.HEADLINE
    ]
    header = ["arm", "phase", "mode", "mean, K=0, 4, 8", "K=8", "false STOP", "steps"]
    return table(header, cells, text_columns=3)


def _signal(name: str, value: float | None) -> str:
    return percent(value) if name in _SHARES else number(value)


def _name(record: RunRecord, row: Row) -> str:
    """A policy's name, marked where it learned from more than the demonstrations or sees more than the others."""
    mark = ORACLE_MARK if round_of(row["phase"]) is not None and sees_oracle_labels(record.config) else ""
    sees_targets = row["phase"].startswith("oracle_") or record.config["show_targets"] and row["arm"] != BASELINE_ARM
    return escape(label(row["phase"])) + mark + (TARGETS_MARK if sees_targets else "")


def _mode(mode: str) -> str:
    return escape(mode) + (TARGETS_MARK if mode == "verified" else "")


def _marked(record: RunRecord) -> bool:
    return sees_oracle_labels(record.config) and any(round_of(row["phase"]) for row in record.tables.headline)


def _arm_of(record: RunRecord, phase: str) -> str:
    return next((row["arm"] for row in record.tables.metrics if row["phase"] == phase), BASELINE_ARM)


def _pairs(values: Mapping[str, Any]) -> str:
    """A table of names and values, or nothing where there are none."""
    cells = [[escape(key), escape("" if value is None else value)] for key, value in values.items()]
    return table(["name", "value"], cells, text_columns=2) if cells else ""
