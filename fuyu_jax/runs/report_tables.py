"""The tables of a run's report, from the run's own tables; plain text, for whoever writes them down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuyu_jax.evaluate.metrics import BUDGET, COPIED_PHASE, HARD_BUDGET, HARD_SPLIT, last_update, round_of
from fuyu_jax.runs import original
from fuyu_jax.runs.document import Row, Table
from fuyu_jax.runs.figures import BASELINE_ARM, RunTables, label
from fuyu_jax.runs.settings import sees_oracle_labels
from fuyu_jax.runs.tables import DIAGNOSTIC_COLUMNS, METRICS_TEXT, SIGNAL_COLUMNS, TRAIN_LOG_TEXT, read_table
from fuyu_jax.runs.wording import between, interval, number, percent, points

ORACLE_MARK = "†"  # learned from the oracle beyond the demonstrations
TARGETS_MARK = "‡"  # sees the public targets, or more
POLICY_HEADER = (
    "policy", "mode", "mean_accuracy_k048", "K=8", "accuracy_at_budget (95 %)", "false STOP", "edits",
)  # fmt: skip
HEADLINE_HEADER = (*POLICY_HEADER, "original: mean, K=0, 4, 8", "original: K=8", "original: false STOP")


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

    @property
    def marked(self) -> bool:
        """Whether a policy of the run carries the mark of the oracle's labels."""
        return sees_oracle_labels(self.config) and any(round_of(row["phase"]) for row in self.tables.headline)


def headline_table(record: RunRecord) -> Table:
    """The copied and the last policy, doing nothing and the oracle, beside the original's figures."""
    last = last_update(row["phase"] for row in record.tables.headline)
    wanted = [("do_nothing", None), (COPIED_PHASE, COPIED_PHASE)]
    if last is not None:
        wanted.append((last, "grpo_echo_r1_policy" if record.config["arm"] == "grpo_echo" else None))
    wanted.append(("oracle_reference", "oracle_teacher"))
    rows = [
        [*_policy_cells(record, row), *_original_cells(theirs, row["mode"])]
        for phase, theirs in wanted
        for row in record.tables.headline
        if row["phase"] == phase and (row["mode"] != "verified" or row["arm"] == BASELINE_ARM)
    ]
    return Table(HEADLINE_HEADER, rows, text_columns=2)


def modes_table(record: RunRecord) -> Table:
    """Every phase and mode that was measured."""
    return Table(POLICY_HEADER, [_policy_cells(record, row) for row in record.tables.headline], text_columns=2)


def comparison_table(record: RunRecord) -> Table:
    """The last policy against the copied one, paired by task: each split in learned mode, all splits in every mode."""
    cells = [
        [
            row["split"],
            _mode(row["mode"]),
            percent(row["base_accuracy"]),
            percent(row["accuracy"]),
            points(row["difference"]),
            between(row["low"], row["high"]),
            f"{row['gained']} / {row['lost']}",
            number(row["mcnemar_mid_p"]),
            row["verdict"],
        ]
        for row in record.results["comparisons"]
        if row["mode"] == "learned" or row["split"] == "all"
    ]
    header = ["split", "mode", "copied", "updated", "difference, points", "95 % interval", "gained / lost"]
    return Table([*header, "McNemar mid-p", "verdict"], cells, text_columns=2)


def splits_table(record: RunRecord) -> Table:
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
        line = [split, str(budget)]
        for phase in phases:
            found = [row for row in rows if (row["split"], row["phase"], row["k"]) == (split, phase, budget)]
            line.append(interval(*(found[0][name] for name in _ACCURACY)) if found else "")
        cells.append(line)
    pairs = [
        f"{_name(record, row)} {interval(*(row[name] for name in _PAIR_ACCURACY))}"
        for row in record.results["extra_metrics"]
        if row["mode"] == "learned" and row["k"] == BUDGET and row.get("pair_accuracy") is not None
    ]
    header = ["split", "K", *(_name(record, {"arm": _arm_of(record, phase), "phase": phase}) for phase in phases)]
    note = f"Both tasks of a `fresh_paired` pair solved at K={BUDGET}: {'; '.join(pairs)}." if pairs else ""
    return Table(header, cells, note=note)


def samples_table(record: RunRecord) -> Table:
    """Share of tasks that one of eight sampled rollouts or more solves, by phase and split, where that was measured."""
    rates = record.results.get("pass_at_8", {})
    splits = list(dict.fromkeys(split for by_split in rates.values() for split in by_split))
    cells = [
        [_name(record, {"arm": _arm_of(record, phase), "phase": phase}), *(percent(found.get(name)) for name in splits)]
        for phase, found in rates.items()
    ]
    return Table(["policy", *splits], cells)


def signals_table(record: RunRecord) -> Table:
    """What the last round's rollouts showed, beside the original's; no rows for an arm that samples none."""
    rounds = [row for row in record.tables.train_log if row["kind"] == "signals"]
    cells = [
        [name.replace("_", " "), _signal(name, rounds[-1].get(name)), _signal(name, original.SIGNALS.get(name))]
        for name in SIGNAL_COLUMNS
        if rounds and (rounds[-1].get(name) is not None or name in original.SIGNALS)
    ]
    return Table(["signal", f"round {len(rounds)}", "original, shaped GRPO + ECHO"], cells)


def diagnostics_table(record: RunRecord) -> Table:
    """The training diagnostics of each phase on both fixed sets of states."""
    rows = [row for row in record.tables.train_log if row["kind"] == "diagnostics"]
    names = [name for name in DIAGNOSTIC_COLUMNS[1:] if any(row.get(name) is not None for row in rows)]
    cells = [
        [label(row["phase"]), label(row["state_set"]), *(_signal(name, row.get(name)) for name in names)]
        for row in rows
    ]
    return Table(["phase", "states", *(name.replace("_", " ") for name in names)], cells, text_columns=2)


def original_table() -> Table:
    """The original's whole headline table."""
    names = ("mean_accuracy", "k8_accuracy", "false_stop_rate")
    cells = [
        [row["arm"], row["phase"], row["mode"], *map(percent, (row[name] for name in names))]
        + [f"{row['mean_steps']:.2f}"]
        for row in original.HEADLINE
    ]
    header = ["arm", "phase", "mode", "mean, K=0, 4, 8", "K=8", "false STOP", "steps"]
    return Table(header, cells, text_columns=3)


def pairs_table(values: Mapping[str, Any]) -> Table:
    """A table of names and values."""
    cells = [[key, "" if value is None else str(value)] for key, value in values.items()]
    return Table(["name", "value"], cells, text_columns=2)


def data_table(rows: Sequence[Row], most: int = 60) -> Table:
    """Plain rows as a table; shares stay numbers. Of more than `most` rows, evenly spaced ones are shown."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    step = -(-len(rows) // most) if rows else 1
    cells = [[number(row.get(column)) for column in columns] for row in rows[::step]]
    texts = sum(any(isinstance(row.get(column), str) for row in rows) for column in columns)
    note = f"One row in {step} of {len(rows)}." if step > 1 else ""
    return Table(columns, cells, max(1, texts), note)


# Columns of the training log that are shares, shown as percent.
_SHARES = (
    "rollout_success", "reachable_after", "destroyed_reachability", "false_stop", "zero_spread_groups",
    *(name for name in DIAGNOSTIC_COLUMNS if name.endswith("accuracy") or name.startswith("recall")),
)  # fmt: skip
_PAIR_ACCURACY = ("pair_accuracy", "pair_accuracy_low", "pair_accuracy_high")
_ACCURACY = ("accuracy", "accuracy_low", "accuracy_high")


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


def _signal(name: str, value: float | None) -> str:
    return percent(value) if name in _SHARES else number(value)


def _name(record: RunRecord, row: Row) -> str:
    """A policy's name, marked where it learned from more than the demonstrations or sees more than the others."""
    mark = ORACLE_MARK if round_of(row["phase"]) is not None and sees_oracle_labels(record.config) else ""
    sees_targets = row["phase"].startswith("oracle_") or record.config["show_targets"] and row["arm"] != BASELINE_ARM
    return label(row["phase"]) + mark + (TARGETS_MARK if sees_targets else "")


def _mode(mode: str) -> str:
    return mode + (TARGETS_MARK if mode == "verified" else "")


def _arm_of(record: RunRecord, phase: str) -> str:
    return next((row["arm"] for row in record.tables.metrics if row["phase"] == phase), BASELINE_ARM)
