"""The original's tables row by row, beside what its recipe came to here."""

from __future__ import annotations

from collections.abc import Sequence

from fuyu_jax.evaluate.metrics import BUDGET, COPIED_PHASE, ORIGINAL_BUDGETS
from fuyu_jax.runs import original
from fuyu_jax.runs.document import Heading, Part, Table, Text
from fuyu_jax.runs.wording import number, percent
from fuyu_jax.study.results import Results

# The cells that run the original's recipe, by the name of its arm.
CELLS = {original.GRPO: "grpo_echo_original", original.DPO: "process_dpo_original"}
HEADS = ("kind_accuracy", "slot_accuracy", "opcode_accuracy", "argument_accuracy")
COUNTED = ("mean_steps", "states", "reward_std")  # all other columns are shares
DIAGNOSES = ("action_accuracy", "stop_accuracy", "rank_accuracy", "echo_accuracy")


def parts(results: Results) -> list[Part]:
    """The tables; none where no cell runs the original's recipe."""
    regime = next((regime for regime in results.plan.regimes if set(CELLS.values()) & set(results.cells(regime))), None)
    if regime is None:
        return []
    cells = {arm: cell for arm, cell in CELLS.items() if results.runs(regime, cell)}
    cited = f"Figures of the original are cited from the {original.SOURCE}; ours are means over seeds."
    return [
        Text(cited),
        Heading("Headline metrics"),
        _headline(results, regime, cells),
        Heading("Process signals of the first turn"),
        _signals(results, regime, cells),
        Heading("Training diagnostics"),
        _diagnostics(results, regime, cells),
        Heading(f"Valid edits, learned mode, K={BUDGET}"),
        _valid_edits(results, regime, cells),
        Heading("Accuracy of each head"),
        _heads(results, regime, cells),
    ]


def _phase(results: Results, regime: str, cell: str, theirs: str) -> str:
    """Our name of a phase of the original's: copying's, or that after the last round."""
    return COPIED_PHASE if theirs.startswith(COPIED_PHASE) else str(results.about(regime, cell)["phase"])


def _headline(results: Results, regime: str, cells: dict[str, str]) -> Table:
    columns = ("mean_accuracy", "k8_accuracy", "false_stop_rate", "mean_steps")
    ours: list[tuple[str, int | tuple[int, ...]]] = [("accuracy", ORIGINAL_BUDGETS), ("accuracy", BUDGET)]
    ours += [("false_stop_rate", ORIGINAL_BUDGETS), ("mean_steps", ORIGINAL_BUDGETS)]
    rows = []
    for row in original.HEADLINE:
        if row["arm"] not in cells or row["phase"] == "oracle_teacher":
            continue
        cell = cells[row["arm"]]
        where = {"phase": _phase(results, regime, cell, row["phase"]), "mode": row["mode"], "split": "all"}
        found = [results.metric(regime, cell, name, k=k, **where) for name, k in ours]
        rows.append([row["arm"], row["phase"], row["mode"], *_texts(columns, [row[name] for name in columns], found)])
    return Table(["arm", "phase", "mode", *_doubled(columns)], rows, text_columns=3)


def _signals(results: Results, regime: str, cells: dict[str, str]) -> Table:
    cell = cells.get(original.GRPO)
    found = results.training(regime, cell, "signals", "first") if cell else {}
    ours = {name: value for (_, name), value in found.items()}
    rows = [[name, *_texts([name], [theirs], [ours.get(name)])] for name, theirs in original.SIGNALS.items()]
    return Table(["signal", "the original", "ours"], rows)


def _diagnostics(results: Results, regime: str, cells: dict[str, str]) -> Table:
    rows = []
    for row in original.DIAGNOSTICS:
        if row["arm"] not in cells or row["phase"] == f"{COPIED_PHASE}_e1":
            continue
        cell = cells[row["arm"]]
        phase = _phase(results, regime, cell, row["phase"])
        for states in ("oracle_path", "bc_states"):
            found = results.training(regime, cell, "diagnostics", states)
            ours = [found.get((phase, name)) for name in DIAGNOSES]
            theirs = [row[name] for name in DIAGNOSES]
            rows.append([row["arm"], row["phase"], states, *_texts(DIAGNOSES, theirs, ours)])
    note = "The original measured each phase on the states it trained on; ours are two fixed sets of states."
    return Table(["arm", "phase", "our states", *_doubled(DIAGNOSES)], rows, text_columns=3, note=note)


def _valid_edits(results: Results, regime: str, cells: dict[str, str]) -> Table:
    phases = {"grpo_echo_r1_policy": original.GRPO, "process_dpo_r1_policy": original.DPO}
    rows = []
    for row in original.VALID_EDITS:
        texts = []
        for theirs in (name for name in row if name != "split"):
            cell = cells.get(phases.get(theirs, original.GRPO))
            where = {"mode": "learned", "split": row["split"], "k": BUDGET}
            ours = cell and results.metric(
                regime, cell, "valid_edit_rate", phase=_phase(results, regime, cell, theirs), **where
            )
            texts += [percent(row[theirs]), percent(ours or None)]
        rows.append([row["split"], *texts])
    return Table(["split", *_doubled([name for name in original.VALID_EDITS[0] if name != "split"])], rows)


def _heads(results: Results, regime: str, cells: dict[str, str]) -> Table:
    arms = {COPIED_PHASE: original.GRPO, "grpo_echo_r1_policy": original.GRPO, "process_dpo_r1_policy": original.DPO}
    rows = []
    for row in original.HEADS:
        cell = cells.get(arms.get(row["phase"], ""))
        if cell is None:
            continue
        found = results.training(regime, cell, "diagnostics", "oracle_path")
        ours = [found.get((_phase(results, regime, cell, row["phase"]), name)) for name in HEADS]
        theirs = [value for name, value in row.items() if name != "phase"]
        rows.append([row["phase"], *_texts(HEADS, theirs, ours)])
    return Table(["phase", *_doubled(HEADS)], rows)


def _texts(columns: Sequence[str], theirs: Sequence[float], ours: Sequence[float | None]) -> list[str]:
    """The original's figure and ours of each column in turn: counts as numbers, all else as percent."""
    texts = []
    for name, *pair in zip(columns, theirs, ours, strict=True):
        write = number if name in COUNTED else percent
        texts += [write(value) for value in pair]
    return texts


def _doubled(columns: Sequence[str]) -> list[str]:
    return [f"{name}, {whose}" for name in columns for whose in ("original", "ours")]
