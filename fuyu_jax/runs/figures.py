"""The charts of a report, one function a chart. Each takes plain rows, writes a PNG and returns the rows it drew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuyu_jax.evaluate.metrics import BUDGET, COPIED_PHASE, HARD_BUDGET, HARD_SPLIT, last_update, round_of
from fuyu_jax.runs import original
from fuyu_jax.runs.plotting import Axis, Row, bars, lines
from fuyu_jax.runs.tables import LOSS_COLUMNS, to_csv, write_atomically

Rows = list[dict[str, Any]]

BASELINE_ARM = "baseline"
LABELS = {
    "bc": "behaviour cloning",
    "grpo_echo": "GRPO + ECHO",
    "do_nothing": "do nothing",
    "random_valid": "random valid edits",
    "oracle_reference": "oracle (reference)",
    "oracle_search": "oracle (search)",
    "bc_policy": "copied policy",
    "bc_policy_e1": "copied, first epoch",
    "oracle_path": "oracle's path",
    "bc_states": "copied policy's states",
}


@dataclass(frozen=True)
class RunTables:
    """The tables of a run that charts are drawn from, with numbers as numbers and missing cells as None.

    Attributes:
      metrics: rows of `metrics.csv`.
      train_log: rows of `train_log.csv`.
      headline: rows of `headline` in `results.json`.
    """

    metrics: Sequence[Row]
    train_log: Sequence[Row]
    headline: Sequence[Row]


@dataclass(frozen=True)
class Figure:
    """A drawn chart, `figures/NAME.png`: its title, how to read it, the rows it shows and the original's rows."""

    name: str
    title: str
    reading: str
    rows: Rows
    original: Rows


def label(name: str) -> str:
    """What a phase, arm or state set is called in charts and tables; an unknown name is its own label."""
    number = round_of(name)
    if number is not None:
        arm = name[: -len(f"_r{number}_policy")]
        return f"{LABELS.get(arm, arm)}, round {number}"
    return LABELS.get(name, name)


def draw_all(tables: RunTables, folder: Path) -> list[Figure]:
    """Draws every chart into `folder` as NAME.png with its data as NAME.csv, and returns what was drawn."""
    folder.mkdir(exist_ok=True)
    drawn = []
    for chart in CHARTS:
        rows = chart.draw(tables, folder / f"{chart.name}.png")
        columns = list(dict.fromkeys(column for row in rows for column in row))
        write_atomically(folder / f"{chart.name}.csv", to_csv(columns, rows).encode())
        drawn.append(Figure(chart.name, chart.title, chart.reading, rows, chart.original))
    return drawn


def accuracy_before_after(tables: RunTables, path: Path) -> Rows:
    """Mean accuracy over K in 0, 4, 8 and the splits in learned mode: after copying, and after the last update."""
    rows = _before_after(tables.headline, "mean_accuracy_k048")
    axis = Axis("Accuracy before and after the update (learned mode)", "arm", "policy", "mean_accuracy_k048", "solved")
    bars(path, axis, rows, _do_nothing(tables.headline, "mean_accuracy_k048"))
    return rows


def accuracy_at_budget(tables: RunTables, path: Path) -> Rows:
    """Accuracy at K=8 (12 for hard_composition) of every phase of the arms, in every mode."""
    rows = [
        {"phase": label(row["phase"]), "mode": row["mode"], "accuracy_at_budget": row["accuracy_at_budget"]}
        | {"low": row["low"], "high": row["high"]}
        for row in _policies(tables.headline)
    ]
    title = f"Accuracy at K={BUDGET} ({HARD_SPLIT} at K={HARD_BUDGET}), all splits"
    axis = Axis(title, "phase", "mode", "accuracy_at_budget", "solved", low="low", high="high")
    bars(path, axis, rows, _do_nothing(tables.headline, "accuracy_at_budget"))
    return rows


def k8_accuracy(tables: RunTables, path: Path) -> Rows:
    """Accuracy at K=8 over all splits in learned mode, before and after."""
    pooled = [row for row in tables.metrics if row["split"] == "all" and row["k"] == BUDGET]
    rows = _before_after(pooled, "accuracy", "accuracy_low", "accuracy_high")
    title = f"Accuracy at K={BUDGET} before and after the update (learned mode)"
    axis = Axis(title, "arm", "policy", "accuracy", "solved", low="accuracy_low", high="accuracy_high")
    bars(path, axis, rows, _do_nothing(pooled, "accuracy"))
    return rows


def false_stop(tables: RunTables, path: Path) -> Rows:
    """Share of rollouts that stop unsolved, mean over K in 0, 4, 8 and the splits, before and after."""
    rows = _before_after(tables.headline, "false_stop_rate_k048")
    title = "False STOP before and after the update (learned mode)"
    bars(path, Axis(title, "arm", "policy", "false_stop_rate_k048", "stopped unsolved"), rows)
    return rows


def action_stop_accuracy(tables: RunTables, path: Path) -> Rows:
    """Accuracy of the chosen action and of STOP on both fixed sets of states, by phase."""
    rows = []
    for row in _diagnostics(tables):
        for column, name in (("action_accuracy", "action"), ("stop_accuracy", "STOP")):
            group = f"{name}, {label(row['state_set'])}"
            rows.append({"measure": group, "phase": label(row["phase"]), "accuracy": row.get(column)})
    bars(path, Axis("Action and STOP accuracy on fixed states", "measure", "phase", "accuracy", "right"), rows)
    return rows


def headroom(tables: RunTables, path: Path) -> Rows:
    """Accuracy of doing nothing, the copied policy, the updated one and the oracle, a group a split."""
    rows = []
    for row in tables.metrics:
        phases = {"do_nothing", COPIED_PHASE, _last_phase(tables.metrics, row["arm"]), "oracle_reference"}
        wanted = row["phase"] in phases and row["mode"] == ("learned" if row["arm"] != BASELINE_ARM else row["mode"])
        if wanted and row["split"] != "all" and row["k"] == _budget(row["split"]):
            rows.append({"split": row["split"], "policy": label(row["phase"]), **_columns(row, "k", "n", *_ACCURACY)})
    order = ["do_nothing", COPIED_PHASE]
    first, last = [label(phase) for phase in order], label("oracle_reference")
    rows.sort(key=lambda row: first.index(row["policy"]) if row["policy"] in first else 2 + (row["policy"] == last))
    title = f"Headroom per split, K={BUDGET} ({HARD_SPLIT} K={HARD_BUDGET}), learned mode"
    bars(path, Axis(title, "split", "policy", "accuracy", "solved", low="accuracy_low", high="accuracy_high"), rows)
    return rows


def oracle_by_budget(tables: RunTables, path: Path) -> Rows:
    """Solve rate of both oracles against the budget K, a line a split."""
    rows = [
        {"split": row["split"], "oracle": label(row["phase"]), **_columns(row, "k", "n", *_ACCURACY)}
        for row in tables.metrics
        if row["phase"] in ("oracle_reference", "oracle_search") and row["split"] != "all"
    ]
    axis = Axis("Oracle against the budget", "k", "split", "accuracy", "solved", "edit budget K", dash="oracle")
    lines(path, axis, rows)
    return rows


def valid_edits(tables: RunTables, path: Path) -> Rows:
    """Share of attempted edits that are valid in learned mode at K=8, a group a split."""
    rows = [
        {"split": row["split"], "phase": label(row["phase"]), "valid_edit_rate": row["valid_edit_rate"]}
        for row in _policies(tables.metrics)
        if row["mode"] == "learned" and row["k"] == BUDGET and row["split"] != "all"
    ]
    axis = Axis(f"Valid edits at K={BUDGET} (learned mode)", "split", "phase", "valid_edit_rate", "valid of attempted")
    bars(path, axis, rows)
    return rows


def head_accuracy(tables: RunTables, path: Path) -> Rows:
    """Accuracy of the parts of the chosen edit on the oracle's path, a group a phase."""
    rows = [
        {"phase": label(row["phase"]), "part": part, "accuracy": row.get(f"{part}_accuracy")}
        for row in _diagnostics(tables)
        if row["state_set"] == "oracle_path"
        for part in ("action", "kind", "slot", "opcode", "argument")
    ]
    bars(path, Axis("Parts of the edit, right on the oracle's path", "phase", "part", "accuracy", "right"), rows)
    return rows


def training_curves(tables: RunTables, path: Path) -> Rows:
    """Every loss term against the count of logged updates, with a mark where a phase begins."""
    updates = [row for row in tables.train_log if row["kind"] == "update"]
    drawn = [name for name in LOSS_COLUMNS if any(row.get(name) is not None for row in updates)]
    rows = [{"phase": row["phase"], **_columns(row, "update", *drawn)} for row in updates]
    points = [
        {"position": number, "term": name.removesuffix("_loss"), "value": row.get(name)}
        for name in drawn
        for number, row in enumerate(updates)
    ]
    begins = [n for n, row in enumerate(updates) if n == 0 or row["phase"] != updates[n - 1]["phase"]]
    marks = [(float(n), label(updates[n]["phase"])) for n in begins]
    axis = Axis("Training losses", "position", "term", "value", "loss (mean of a batch)", "logged update", share=False)
    lines(path, axis, points, marks)
    return rows


def rollout_signals(tables: RunTables, path: Path) -> Rows:
    """What the sampled rollouts of each round showed: success, reachability kept and destroyed, false STOP."""
    names = ("rollout_success", "reachable_after", "destroyed_reachability", "false_stop")
    rows = [
        {"round": number, **_columns(row, *names)}
        for number, row in enumerate((row for row in tables.train_log if row["kind"] == "signals"), start=1)
    ]
    points = [
        {"round": row["round"], "signal": name.replace("_", " "), "share": row[name]} for name in names for row in rows
    ]
    lines(path, Axis("Signals of the sampled rollouts", "round", "signal", "share", "share", "round"), points)
    return rows


@dataclass(frozen=True)
class _Chart:
    name: str
    title: str
    reading: str
    draw: Callable[[RunTables, Path], Rows]
    original: Rows


CHARTS = (
    _Chart(
        "accuracy_before_after",
        "Accuracy before and after the update",
        "The left bar is the copied policy, the right bar the policy after the last round. Higher is better. The "
        "dashed line is what leaving every program as it is scores; K=0 counts in this mean and lifts every policy.",
        accuracy_before_after,
        original.before_after("mean_accuracy"),
    ),
    _Chart(
        "accuracy_at_budget",
        "Accuracy at budget, every phase and mode",
        "Bars are shares of tasks solved with Wilson intervals at 95 %. `verified` sees the public targets, the other "
        "modes do not: compare it only with itself.",
        accuracy_at_budget,
        [],
    ),
    _Chart(
        "k8_accuracy",
        "Accuracy at K=8",
        "As the first chart, at one budget of eight edits, with Wilson intervals at 95 %.",
        k8_accuracy,
        original.before_after("k8_accuracy"),
    ),
    _Chart(
        "false_stop",
        "False STOP",
        "The share of rollouts that the policy ended although the program was wrong. Lower is better, as long as "
        "accuracy does not fall with it.",
        false_stop,
        original.before_after("false_stop_rate"),
    ),
    _Chart(
        "action_stop_accuracy",
        "Action and STOP accuracy",
        "Measured on the same states in every phase, so that bars of one group can be compared. The original measured "
        "each phase on other states.",
        action_stop_accuracy,
        original.DIAGNOSTICS,
    ),
    _Chart(
        "headroom",
        "Headroom per split",
        "What is gained lies between doing nothing and the copied policy; what is left lies between the policy and "
        "the oracle.",
        headroom,
        original.HEADROOM,
    ),
    _Chart(
        "oracle_by_budget",
        "Oracle against K",
        "How much of each split the edit budget allows at all. The search oracle knows the targets, the reference "
        "oracle the program.",
        oracle_by_budget,
        original.ORACLE,
    ),
    _Chart(
        "valid_edits",
        "Valid edits",
        "The share of attempted edits that change the program in a legal way. A validity mask makes it 100 %.",
        valid_edits,
        original.VALID_EDITS,
    ),
    _Chart(
        "head_accuracy",
        "Accuracy of the parts of an edit",
        "Whether the chosen edit, its slot, and its opcode or argument are among the oracle's best edits.",
        head_accuracy,
        original.HEADS,
    ),
    _Chart(
        "training_curves",
        "Training losses",
        "Vertical lines show where a phase begins; terms that a phase does not use are absent.",
        training_curves,
        [],
    ),
    _Chart(
        "rollout_signals",
        "Signals of the rollouts",
        "Encouraging signals here do not show that the deployed policy is better: the charts above do.",
        rollout_signals,
        [],
    ),
)

_ACCURACY = ("accuracy", "accuracy_low", "accuracy_high")


def _columns(row: Row, *names: str) -> dict[str, Any]:
    return {name: row.get(name) for name in names}


def _policies(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["arm"] != BASELINE_ARM]


def _last_phase(rows: Sequence[Row], arm: str) -> str | None:
    return last_update(row["phase"] for row in rows if row["arm"] == arm)


def _budget(split: str) -> int:
    return HARD_BUDGET if split == HARD_SPLIT else BUDGET


def _before_after(rows: Sequence[Row], *columns: str) -> Rows:
    """The copied and the last updated policy of each arm in learned mode, with the columns wanted."""
    found = []
    for arm in dict.fromkeys(row["arm"] for row in _policies(rows)):
        for phase, policy in ((COPIED_PHASE, "after copying"), (_last_phase(rows, arm), "after the last update")):
            for row in rows:
                if (row["arm"], row["phase"], row["mode"]) == (arm, phase, "learned"):
                    found.append({"arm": label(arm), "policy": policy, **_columns(row, *columns)})
    return found


def _do_nothing(rows: Sequence[Row], column: str) -> dict[str, Any]:
    return {label(row["phase"]): row.get(column) for row in rows if row["phase"] == "do_nothing"}


def _diagnostics(tables: RunTables) -> list[Row]:
    return [row for row in tables.train_log if row["kind"] == "diagnostics"]
