"""A finished run made of invented numbers, for tests of charts and reports."""

import numpy as np

from fuyu_jax.evaluate.metrics import metrics_from_outcomes, summary
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.report import EPISODES
from fuyu_jax.runs.settings import PilotSettings
from fuyu_jax.runs.tables import METRICS_COLUMNS, OUTCOMES_COLUMNS, TRAIN_LOG_COLUMNS

SPLITS = ("val_mixed", "fresh_standard", "fresh_paraphrase", "fresh_paired", "hard_composition")
MANIFEST = {
    "command": "python experiments/pilot.py --preset smoke",
    "seeds": {"seed": 0},
    "git": {"commit": "0123abc", "dirty": True},
    "python": "3.11.7",
    "packages": {"jax": "0.10.2"},
    "devices": [{"platform": "cpu", "kind": "cpu"}],
    "machine": {"system": "Linux", "processor": "A | B <c>", "cores": 2, "memory_gib": 23.5},
    "environment": {},
    "data": {},
}

PASS_AT_8 = {"bc_policy": {"val_mixed": 0.375, "fresh_paired": 0.25}, "grpo_echo_r2_policy": {"val_mixed": 0.875}}


def sample_outcomes(arm="grpo_echo", rounds=2, tasks=16, copied=0.4, updated=0.7, budgets=(0, 4, 8, 12)):
    """Outcomes of copying, an update and every baseline, with shares solved that rise with the budget."""
    rng = np.random.default_rng(0)
    policies = [("bc_policy_e1", copied / 2), ("bc_policy", copied)]
    policies += [(f"{arm}_r{number}_policy", updated) for number in range(1, rounds + 1)]
    rows = [
        (arm, phase, mode, share)
        for phase, share in policies
        for mode in ("forced", "learned", "value_gated", "verified")
    ]
    rows += [("baseline", phase, "forced", 0.0) for phase in ("do_nothing", "random_valid")]
    rows += [("baseline", phase, "verified", 0.9) for phase in ("oracle_reference", "oracle_search")]
    parts = []
    for arm_name, phase, mode, share in rows:
        for split in SPLITS:
            start = np.arange(tasks) % 8 == 0
            luck = rng.random(tasks)
            for k in budgets:
                solved = start | (luck < share * k / 12)
                steps = np.minimum(k, 4)
                parts.append(
                    Outcomes.build(
                        arm=arm_name, phase=phase, seed=0, mode=mode, split=split, k=k, task=np.arange(tasks),
                        start_solved=start, solved=solved, ever_solved=solved, false_stop=~solved & (luck > 0.9),
                        steps=steps, valid_edits=steps, edits=rng.integers(0, 480, (tasks, 4)),
                    )
                )  # fmt: skip
    return Outcomes.concatenate(parts)


def sample_train_log(arm="grpo_echo", rounds=2):
    """Losses, signals and diagnostics of the same run."""
    rows = [
        {
            "phase": "bc_policy",
            "update": n,
            "kind": "update",
            "loss": 2 / (n + 1),
            "edit_loss": 1 / (n + 1),
            "tokens": 1000,
        }
        for n in range(30)
    ]
    for number in range(1, rounds + 1):
        phase = f"{arm}_r{number}_policy"
        rows += [{"phase": phase, "update": n, "kind": "update", "loss": 0.5, "policy_loss": -0.1} for n in range(5)]
        rows.append(
            {"phase": phase, "update": 4, "kind": "signals", "states": 500 + number, "rollout_success": 0.25,
             "reachable_after": 0.5, "destroyed_reachability": 0.125, "false_stop": 0.1, "reward_std": 0.5}
        )  # fmt: skip
    for phase in ("bc_policy_e1", "bc_policy", *(f"{arm}_r{number}_policy" for number in range(1, rounds + 1))):
        for states in ("oracle_path", "bc_states"):
            accuracies = dict.fromkeys(("action", "slot", "opcode", "argument", "stop", "echo"), 0.5)
            rows.append(
                {"phase": phase, "update": 0, "kind": "diagnostics", "state_set": states, "kl_to_bc": 0.01}
                | {f"{name}_accuracy": value for name, value in accuracies.items()}
            )
    return rows


def write_run(path, outcomes=None, train_log=None, manifest=None, episodes=None, **overrides):
    """A whole run folder but its report and figures."""
    outcomes = sample_outcomes() if outcomes is None else outcomes
    folder = RunFolder.create(str(path), "sample")
    folder.write_json("config.json", PilotSettings(**overrides).to_dict())
    folder.write_json("dataset_manifest.json", MANIFEST | (manifest or {}))
    folder.write_json(
        "results.json", {**summary(outcomes), "counts": {"vm_executions": 123456}, "pass_at_8": PASS_AT_8}
    )
    folder.write_csv("outcomes.csv", OUTCOMES_COLUMNS, outcomes.rows())
    folder.write_csv("metrics.csv", METRICS_COLUMNS, metrics_from_outcomes(outcomes))
    folder.write_csv("train_log.csv", TRAIN_LOG_COLUMNS, sample_train_log() if train_log is None else train_log)
    if episodes is not None:
        folder.write_json_lines(EPISODES, episodes)
    return folder.path
