"""Figures that the original experiment reported, to be cited as its own beside ours. Shares, not percent."""

from __future__ import annotations

from typing import Any

SOURCE = "Qwen Fuyu VM GRPO-ECHO experiment report (2026-06-24)"
SETUP = "Qwen/Qwen3-4B with 4-bit QLoRA, 32 train tasks, 2 epochs of copying, one round, 16 tasks a split, K in 0, 4, 8"

Rows = list[dict[str, Any]]


def _rows(columns: str, *cells: tuple[Any, ...]) -> Rows:
    names = columns.split()
    return [dict(zip(names, row, strict=True)) for row in cells]


GRPO, DPO = "Shaped GRPO + ECHO", "Process Preference"

# Table "Headline Metrics"; mean_accuracy is the mean over K in 0, 4, 8 and the five splits.
HEADLINE: Rows = _rows(
    "arm phase mode mean_accuracy k8_accuracy false_stop_rate mean_steps",
    (GRPO, "bc_policy", "forced", 0.088, 0.125, 0.0, 4.00),
    (GRPO, "bc_policy", "learned", 0.100, 0.138, 0.083, 3.53),
    (GRPO, "bc_policy", "value_gated", 0.083, 0.112, 0.046, 3.89),
    (GRPO, "grpo_echo_r1_policy", "forced", 0.071, 0.0, 0.0, 4.00),
    (GRPO, "grpo_echo_r1_policy", "learned", 0.071, 0.0, 0.042, 3.92),
    (GRPO, "grpo_echo_r1_policy", "value_gated", 0.071, 0.0, 0.0, 4.00),
    (GRPO, "oracle_teacher", "k=8", 0.825, 0.825, 0.0, 5.19),
    (DPO, "bc_policy", "forced", 0.092, 0.138, 0.0, 4.00),
    (DPO, "bc_policy", "learned", 0.092, 0.125, 0.071, 3.60),
    (DPO, "process_dpo_r1_policy", "forced", 0.058, 0.025, 0.0, 4.00),
    (DPO, "process_dpo_r1_policy", "learned", 0.079, 0.050, 0.142, 3.33),
    (DPO, "oracle_teacher", "k=8", 0.825, 0.825, 0.0, 5.19),
)

# Table "Process Signals", the arm of shaped GRPO + ECHO.
SIGNALS: dict[str, float] = {
    "states": 605,
    "rollout_success": 0.094,
    "reachable_after": 0.563,
    "false_stop": 0.594,
    "destroyed_reachability": 0.127,
    "reward_std": 0.50,
}

# Table "Training Diagnostics"; the phases were measured on different sets of states.
DIAGNOSTICS: Rows = _rows(
    "arm phase action_accuracy stop_accuracy rank_accuracy echo_accuracy train_states",
    (GRPO, "bc_policy_e1", 0.308, 0.647, 0.0, 0.511, 237),
    (GRPO, "bc_policy", 0.502, 0.853, 0.0, 0.722, 237),
    (GRPO, "grpo_echo_r1_policy", 0.350, 0.289, 0.0, 0.779, 842),
    (DPO, "bc_policy_e1", 0.308, 0.647, 0.0, 0.511, 237),
    (DPO, "bc_policy", 0.502, 0.853, 0.0, 0.722, 237),
    (DPO, "process_dpo_r1_policy", 0.330, 0.267, 0.802, 0.654, 463),
)

# Chart "Headroom per split": the blank program, the copied policy in learned mode, the oracle teacher; K=8.
HEADROOM: Rows = _rows(
    "split do_nothing bc_policy oracle",
    ("val_mixed", 0.062, 0.0, 0.75),
    ("fresh_standard", 0.125, 0.062, 0.938),
    ("fresh_paraphrase", 0.125, 0.125, 0.75),
    ("fresh_paired", 0.125, 0.25, 0.875),
    ("hard_composition", 0.25, 0.25, 0.812),
)

# Chart "Oracle search scales with rollout budget K".
ORACLE: Rows = _rows(
    "k val_mixed fresh_standard fresh_paraphrase fresh_paired hard_composition",
    (0, 0.062, 0.125, 0.125, 0.125, 0.25),
    (4, 0.25, 0.25, 0.188, 0.25, 0.438),
    (8, 0.75, 0.938, 0.75, 0.875, 0.812),
)

# Chart of valid edits: learned mode, K=8.
VALID_EDITS: Rows = _rows(
    "split bc_policy grpo_echo_r1_policy process_dpo_r1_policy",
    ("val_mixed", 0.938, 0.562, 1.0),
    ("fresh_standard", 0.812, 0.50, 1.0),
    ("fresh_paraphrase", 0.75, 0.562, 1.0),
    ("fresh_paired", 0.875, 0.688, 1.0),
    ("hard_composition", 0.875, 0.50, 1.0),
)

# Chart "Per-head training accuracy across phases".
HEADS: Rows = _rows(
    "phase action_kind slot opcode argument",
    ("bc_policy_e1", 0.827, 0.581, 0.363, 0.228),
    ("bc_policy", 0.924, 0.862, 0.493, 0.413),
    ("grpo_echo_r1_policy", 0.853, 0.664, 0.45, 0.293),
    ("process_dpo_r1_policy", 0.76, 0.549, 0.288, 0.484),
)


def before_after(column: str) -> Rows:
    """A column of the headline table in learned mode, a row an arm: after copying, and after the decision update."""
    table = []
    for arm in (GRPO, DPO):
        learned = [row for row in HEADLINE if row["arm"] == arm and row["mode"] == "learned"]
        table.append({"arm": arm, "bc_policy": learned[0][column], "after_update": learned[1][column]})
    return table
