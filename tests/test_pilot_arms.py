"""The main job in little for arms with much machinery: a learning rate of 0 leaves the copied policy as it is."""

import shlex

import pytest

from fuyu_jax import pilot
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.tables import read_csv

LITTLE = shlex.split(
    "--preset smoke --bc_updates 2 --bc_epochs 1 --updates 2 --batch_tasks 4 --rollout_tasks 4 --rollout_batch 4 "
    "--states_per_task 2 --group 2 --states_per_rollout 1 --eval_tasks 2 --budgets 0,4 --oracle_width 1 --seed 3 "
    "--update_lr 0"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "options", "columns"),
    [
        ("process_dpo", "--shuffle_signal 1", ("pairs", "margin", "winner_gain", "loser_gain", "repair_labels")),
        ("awr", "--awr_actions 2 --reuse 1", ("beta", "target_kl", "action_spread", "executions", "kl_loss")),
        ("expert_iteration", "--search_budget 4 --shuffle_signal 1", ("search_solved", "solved_tasks", "executions")),
        ("value_search", "--search_budget 4", ("search_solved", "sibling_rank", "auc_within_2", "distance_loss")),
    ],
)
def test_an_arm_that_does_not_learn_is_the_copied_policy(arm, options, columns, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_main(pilot.main, ["--arm", arm, *LITTLE, *shlex.split(options), "--out", "run"]) == 0
    phases = {"bc_policy": [], f"{arm}_r1_policy": []}
    for row in read_csv(tmp_path / "run/outcomes.csv"):
        if row["arm"] == arm:
            phases[row.pop("phase")].append(row)
    copied, updated = phases.values()
    assert len(copied) == 4 * 5 * 2 * 2 and updated == copied
    log = read_csv(tmp_path / "run/train_log.csv")
    updates = [row for row in log if (row["phase"], row["kind"]) == (arm, "update")]
    signals = [row for row in log if (row["phase"], row["kind"]) == (arm, "signals")]
    assert len(updates) == len(signals) == 2
    assert all(float(row["gradient_norm"]) > 0 and row["skipped_updates"] == "0" for row in updates)
    assert all(any(row[name] for row in (*updates, *signals)) for name in columns)
    assert [row["oracle_labels"] for row in signals] == (["8", "8"] if arm == "process_dpo" else ["0", "0"])
