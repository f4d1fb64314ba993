"""`compare.py` on runs made by hand: grouping, controls, tables, and what is refused."""

import json

import numpy as np
import pytest
from gate_samples import policy_outcomes
from run_samples import MANIFEST

from experiments import compare
from fuyu_jax.evaluate.metrics import at_budget
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.runs.comparison import compare_runs
from fuyu_jax.runs.errors import UserError, run_main
from fuyu_jax.runs.groups import group_runs
from fuyu_jax.runs.reading import read_run
from fuyu_jax.runs.settings import PilotSettings
from fuyu_jax.runs.tables import OUTCOMES_COLUMNS, read_csv, to_csv

SEEDS = 5


def write_run(folder, arm, seed, gain, shuffle=False, copied=0, **config):
    """One run of 5 splits of 256 tasks: the copied policy and one round."""
    parts = [
        policy_outcomes(np.full((SEEDS, 1), value), arm=arm, phase=phase).select(seed=seed)
        for phase, value in (("bc_policy", copied), (f"{arm}_r1_policy", gain))
    ]
    folder.mkdir(parents=True)
    (folder / "outcomes.csv").write_text(to_csv(OUTCOMES_COLUMNS, Outcomes.concatenate(parts).rows()))
    settings = PilotSettings(seed=seed).to_dict() | {"arm": arm, "out": str(folder), "shuffle_signal": shuffle}
    (folder / "config.json").write_text(json.dumps(settings | config))
    (folder / "dataset_manifest.json").write_text(json.dumps(MANIFEST))
    (folder / "results.json").write_text(json.dumps({"counts": {"updates": 100}}))
    return folder


def study(root, arm, gain, seeds=SEEDS, **options):
    return [write_run(root / f"{arm}{gain}_{seed}", arm, seed, gain + seed, **options) for seed in range(seeds)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = study(root, "grpo_echo", 12) + study(root, "bc_continued", 0)
    return made + study(root, "grpo_echo", 1, shuffle=True)


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "compared"
    assert run_main(compare.main, [*map(str, runs), "--out", str(out)]) == 0
    return out


def test_every_file_and_the_verdict(written):
    names = {path.name for path in written.iterdir()}
    tables = {"policies.csv", "comparisons.csv", "seeds.csv", "clauses.csv", "compare.html"}
    assert names == tables | {"compare.md", "compare.json", "accuracy.png", "differences.png", "experiment_log.md"}
    text = (written / "compare.md").read_text()
    assert "### grpo_echo†: PASS" in text and "nan" not in text.lower()
    found = json.loads((written / "compare.json").read_text())
    assert [(row["arm"], row["result"]) for row in found["verdicts"]] == [("grpo_echo", "PASS")]
    assert all(row["counts"] == {"updates": 100} for row in found["runs"]) and len(found["runs"]) == 15
    assert (written / "accuracy.png").stat().st_size > 5000 < (written / "differences.png").stat().st_size


def test_numbers_follow_from_the_outcomes(runs, written):
    outcomes = [at_budget(Outcomes.read(run / "outcomes.csv")) for run in runs]
    after = [float(rows.select(phase=rows.phase[-1]).solved.mean()) for rows in outcomes]
    arm, continued, shuffled = (np.array(after[5 * n : 5 * n + 5]) for n in range(3))
    rows = {
        (row["control"], row["measure"], row["split"]): row
        for row in json.loads((written / "compare.json").read_text())["comparisons"]
    }
    assert rows["bc_continued", "solved", "all"]["difference"] == pytest.approx((arm - continued).mean())
    assert rows["shuffled", "solved", "all"]["difference"] == pytest.approx((arm - shuffled).mean())
    policies = read_csv(written / "policies.csv")
    mine = [row for row in policies if row["phase"] == "grpo_echo_r1_policy" and row["shuffled"] == "0"]
    assert [float(row["accuracy_at_budget"]) for row in mine] == pytest.approx(arm.tolist())
    seeds = [row for row in read_csv(written / "seeds.csv") if row["control"] == "bc_continued"]
    assert [float(row["difference"]) for row in seeds] == pytest.approx((arm - continued).tolist())


def test_the_order_of_runs_changes_nothing(runs, written, tmp_path):
    assert run_main(compare.main, [*map(str, runs[::-1]), "--out", str(tmp_path / "out")]) == 0
    for name in ("compare.md", "compare.html", "compare.json", "comparisons.csv", "differences.png"):
        assert (tmp_path / "out" / name).read_bytes() == (written / name).read_bytes()


def undecidable(folders, arms=None):
    verdicts = compare_runs([read_run(folder) for folder in folders], arms).verdicts
    assert all(verdict.result == "NOT DECIDABLE" for verdict in verdicts.values())
    return {name: " ".join(verdict.reasons) for name, verdict in verdicts.items()}


def test_missing_and_unequal_controls(runs, tmp_path):
    arm, continued, shuffled = runs[:5], runs[5:10], runs[10:]
    assert "no run of grpo_echo with --shuffle_signal 1" in undecidable(arm + continued)["grpo_echo"]
    assert "no run of the control bc_continued" in undecidable(arm + shuffled)["grpo_echo"]
    assert "ran with the seeds 0, 1, 2, 3," in undecidable(arm + continued[:4] + shuffled)["grpo_echo"]
    assert "4 seeds; the gate needs 5" in undecidable(arm[:4] + continued[:4] + shuffled[:4])["grpo_echo"]
    elsewhere = study(tmp_path, "bc_continued", 0, copied=3)
    assert "started from the same copied policies" in undecidable(arm + elsewhere + shuffled)["grpo_echo"]
    longer = study(tmp_path / "longer", "bc_continued", 0, updates=400)
    assert "could be the control" in undecidable(arm + continued + longer + shuffled)["grpo_echo"]
    assert undecidable(arm + continued, ["typo"]) == {"typo": "There is no run of the arm typo."}


@pytest.mark.filterwarnings("error")
def test_one_seed_leaves_blanks(runs, tmp_path):
    out = tmp_path / "out"
    assert run_main(compare.main, [*map(str, runs[::5]), "--out", str(out)]) == 0
    text = (out / "compare.md").read_text()
    assert "NOT DECIDABLE" in text and "nan" not in text.lower() and "±" not in text.split("Mean over")[0]
    assert all(row["low"] == row["high"] == row["p"] == "" for row in read_csv(out / "comparisons.csv"))


def test_arms_named_none_and_na(tmp_path):
    folders = [run for arm in ("none", "NA", "nan") for run in study(tmp_path, arm, 12, seeds=2)]
    out = tmp_path / "out"
    assert run_main(compare.main, [*map(str, folders), "--out", str(out)]) == 0
    text = (out / "compare.md").read_text()
    assert all(f"### {arm}†: NOT DECIDABLE" in text for arm in ("none", "NA", "nan"))
    assert {row["policy"] for row in read_csv(out / "policies.csv")} == {"none", "NA", "nan"}


def test_an_arm_run_in_two_ways_is_two_arms(tmp_path):
    one = write_run(tmp_path / "one", "grpo_echo", 0, 3, updates=100)
    two = write_run(tmp_path / "two", "grpo_echo", 0, 3, updates=200, budgets=[0, 8])
    groups = group_runs([read_run(folder) for folder in (one, two)])
    assert [group.name for group in groups] == [
        "grpo_echo updates=100 budgets=0/4/8/12",
        "grpo_echo updates=200 budgets=0/8",
    ]


def test_what_is_refused(runs, tmp_path, capsys):
    used, gone, bare = tmp_path / "used", tmp_path / "gone", tmp_path / "bare"
    used.mkdir()
    (used / "file").write_text("x")
    write_run(bare, "grpo_echo", 0, 3)
    (bare / "results.json").write_text("{")
    out = str(tmp_path / "out")
    cases = {
        f"the folder {used} is in use": [runs[0], "--out", used],
        f"{gone} is no finished run": [gone, "--out", out],
        "are the same run": [runs[0], runs[0], "--out", out],
        "name 4 arms at most": [runs[0], "--out", out, "--arms", "a,b,c,d,e"],
        "--arms is a,a": [runs[0], "--out", out, "--arms", "a,a"],
        "did you mean --arms?": [runs[0], "--out", out, "--arm", "a"],
        "the following arguments are required: --out": [runs[0]],
        f"{bare} has no whole results.json": [bare, "--out", out],
    }
    for said, words in cases.items():
        assert run_main(compare.main, [str(word) for word in words]) == 2
        message = capsys.readouterr().err
        assert said in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="ends with"):
        one = write_run(tmp_path / "a" / "one", "grpo_echo", 0, 3)
        two = write_run(tmp_path / "a" / "two", "grpo_echo", 1, 3)
        (two / "outcomes.csv").write_text((two / "outcomes.csv").read_text().replace("_r1_", "_r2_"))
        group_runs([read_run(one), read_run(two)])
