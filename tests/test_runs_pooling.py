"""Pooling over seeds against numbers worked by hand."""

import json

import numpy as np
import pytest

from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.pooling import README_MARKS, pool_runs, pooled_table, write_pool
from fuyu_jax.runs.tables import OUTCOMES_COLUMNS, to_csv

SPLITS = (("val_mixed", 8), ("hard_composition", 12))
TASKS = 4


def rows(arm, phase, seed, mode, solved):
    return [
        Outcomes.build(
            arm=arm, phase=phase, seed=seed, mode=mode, split=split, k=k, task=np.arange(TASKS), start_solved=False,
            solved=solved[split], ever_solved=solved[split], false_stop=~np.array(solved[split], bool), steps=1,
            valid_edits=1, edits="3",
        )
        for split, k in SPLITS
    ]  # fmt: skip


def write_run(folder, seed, copied, updated, **config):
    parts = rows("grpo_echo", "bc_policy", seed, "learned", copied)
    parts += rows("grpo_echo", "grpo_echo_r1_policy", seed, "learned", updated)
    nothing, everything = ({split: [value] * TASKS for split, _ in SPLITS} for value in (0, 1))
    for phase in ("do_nothing", "random_valid"):
        parts += rows("baseline", phase, 0, "forced", nothing)
    for phase in ("oracle_search", "oracle_reference"):
        parts += rows("baseline", phase, 0, "verified", everything)
    folder.mkdir()
    (folder / "outcomes.csv").write_text(to_csv(OUTCOMES_COLUMNS, Outcomes.concatenate(parts).rows()))
    (folder / "config.json").write_text(json.dumps({"arm": "grpo_echo", "seed": seed, "out": str(folder), **config}))
    manifest = {
        "command": f"pilot --seed {seed}", "git": {"commit": "abc", "dirty": False}, "packages": {},
        "machine": {"processor": "P", "cores": 2},
    }  # fmt: skip
    (folder / "dataset_manifest.json").write_text(json.dumps(manifest))
    return folder


def solved(*val_mixed):
    return {"val_mixed": list(val_mixed), "hard_composition": [0] * TASKS}


@pytest.fixture
def runs(tmp_path):
    return [
        write_run(tmp_path / "a", 0, solved(1, 0, 0, 0), solved(1, 1, 1, 0)),
        write_run(tmp_path / "b", 1, solved(1, 1, 0, 0), solved(1, 1, 0, 1)),
    ]


def test_pooled_numbers(runs):
    pooled = pool_runs(runs)
    val, hard, whole = pooled["splits"]
    assert (val["split"], hard["split"], whole["split"]) == ("val_mixed", "hard_composition", "all")
    assert val["copied"]["seeds"] == [0.25, 0.5] and val["copied"]["mean"] == 0.375
    assert val["updated"]["seeds"] == [0.75, 0.75] and val["updated"]["std"] == 0.0
    assert val["copied"]["std"] == pytest.approx(0.25 / np.sqrt(2))
    # Differences of the four tasks, averaged over both seeds: 0, 0.5, 0.5, 0.5.
    assert val["difference"]["difference"] == pytest.approx(0.375)
    assert val["difference"]["low"] == pytest.approx(0.375 - 3.182446 * 0.125, abs=1e-5)
    assert [found["difference"] for found in val["each_seed"]] == [0.5, 0.25]
    assert whole["difference"]["difference"] == pytest.approx(0.1875)
    assert val["do_nothing"] == 0.0 and hard["oracle_reference"] == 1.0


def test_table_and_files(runs, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{README_MARKS[0]}\nold\n{README_MARKS[1]}\nafter\n")
    pooled = pool_runs(runs)
    report = write_pool(pooled, tmp_path / "reports", readme)
    text = readme.read_text()
    assert pooled_table(pooled) in text and "old" not in text
    assert text.startswith("before\n") and text.endswith("after\n")
    assert pooled_table(json.loads((tmp_path / "reports/pilot.json").read_text())) in report.read_text()
    assert "37.5 % ± 17.7" in text and "+37.5" in text


def test_runs_that_do_not_belong_together_are_refused(runs, tmp_path):
    other = write_run(tmp_path / "c", 2, solved(0, 0, 0, 0), solved(0, 0, 0, 0), updates=7)
    for folders in ([runs[0], other], [runs[0], runs[0]], [tmp_path / "nothing"]):
        with pytest.raises(UserError):
            pool_runs(folders)
