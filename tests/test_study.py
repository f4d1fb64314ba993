"""The study's machinery on invented runs: the plan, what is run, the packed data, the gate and the report."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gate_samples import policy_outcomes
from run_samples import sample_train_log, write_run

from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.runs.comparison import compare_runs
from fuyu_jax.runs.errors import RunStopped, UserError, run_main
from fuyu_jax.runs.reading import read_run
from fuyu_jax.study import command, front_page
from fuyu_jax.study.packing import StudyData, pack_bits, unpack_bits
from fuyu_jax.study.plan import make_plan, read_plan
from fuyu_jax.study.processes import Job, cores_of_each, run_side_by_side
from fuyu_jax.study.report import write_report
from fuyu_jax.study.results import Results
from fuyu_jax.study.runner import Runner, cost_text

ROOT = Path(__file__).resolve().parents[1]
SEEDS = 5
PLAN = {
    "title": "A study of invented numbers",
    "gate": ["reward"],
    "common": {"preset": "smoke", "bc_epochs": 1},
    "regimes": {"few": {"demos": 32}, "anatomy": {}},
    "cells": [
        {"name": "bc_continued", "arm": "bc_continued", "regimes": ["few"], "seeds": SEEDS},
        {"name": "reward", "arm": "grpo_echo", "regimes": ["few"], "seeds": SEEDS, "shuffled": True,
         "options": {"anchor_weight": 0, "reward": "execution"}},
        {"name": "grpo_echo_original", "arm": "grpo_echo", "regimes": ["anatomy"], "seeds": 2,
         "options": {"recipe": "original"}},
    ],
}  # fmt: skip
GAINS = {"bc_continued": 0, "reward": 12, "reward_shuffled": 1, "grpo_echo_original": -9}  # tasks of each split


@pytest.fixture(scope="module")
def plan():
    return make_plan(PLAN)


def write_planned(folder, run):
    """A finished run of the plan that solves so many tasks more than half as its cell and seed say."""
    settings, seeds = run.settings, SEEDS
    phases = (("bc_policy", 0), (f"{settings.arm}_r1_policy", GAINS[run.cell] + settings.seed))
    parts = [
        policy_outcomes(np.full((seeds, 1), gain), arm=settings.arm, phase=phase, mode=mode).select(seed=settings.seed)
        for phase, gain in phases
        for mode in ("learned", "forced")
    ]
    log = [row | {"phase": row["phase"].replace("grpo_echo_r2_policy", "grpo_echo")} for row in sample_train_log()]
    write_run(folder, Outcomes.concatenate(parts), log, **vars(settings))
    (folder / "report.md").write_text("whole")


@pytest.fixture(scope="module")
def runs(plan, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for run in plan.runs:
        write_planned(root / run.name, run)
    return root


@pytest.fixture(scope="module")
def data(plan, runs):
    data = StudyData()
    for run in plan.runs:
        data.add(run, runs / run.name)
    return data


def test_a_plan_is_the_product_of_cells_regimes_controls_and_seeds(plan):
    assert len(plan.runs) == 5 + 10 + 2
    assert plan.runs[0].name == "few-bc_continued-s0"
    assert plan.cells("few") == ["bc_continued", "reward", "reward_shuffled"]
    shuffled = next(run for run in plan.runs if run.cell == "reward_shuffled").settings
    assert shuffled.shuffle_signal and shuffled.anchor_weight == 0 and shuffled.demos == 32 and shuffled.bc_updates == 8


@pytest.mark.parametrize("name", ["study.toml", "study_smoke.toml"])
def test_the_plans_of_the_project_are_plans(name):
    plan = read_plan(ROOT / "experiments" / name)
    assert len(plan.gate) <= 4 and {run.settings.eval_tasks for run in plan.runs} in ({256}, {16})
    if name == "study.toml":  # what the gate is asked about has five seeds, and so have its controls
        seeds = Counter((run.regime, run.cell) for run in plan.runs)
        asked = [(regime, cell) for regime in plan.regimes for cell in plan.gate if cell in plan.cells(regime)]
        assert [cell for _, cell in asked] == ["expert_iteration", "grpo_echo_reward_alone", "process_dpo", "dagger"]
        for regime, cell in asked:
            assert {seeds[regime, name] for name in (cell, f"{cell}_shuffled", "bc_continued")} == {5}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gate": ["nobody"]}, "needs the cell nobody"),
        ({"gate": ["grpo_echo_original"]}, "grpo_echo_original_shuffled beside grpo_echo_original in the regime anat"),
        ({"cels": []}, "'cels', which says nothing"),
        ({"cells": [*PLAN["cells"], PLAN["cells"][0]]}, "few-bc_continued-s0 twice"),
        ({"cells": [PLAN["cells"][0] | {"regimes": ["many"]}]}, "'many', which the plan lacks"),
        ({"cells": [PLAN["cells"][0] | {"options": {"updats": 3}}]}, "unknown option --updats"),
    ],
)
def test_what_is_no_plan_is_refused(change, says):
    with pytest.raises(UserError, match=says):
        make_plan(PLAN | change)


def test_bits_come_back():
    values = np.random.default_rng(0).random(19) < 0.5
    assert (unpack_bits(pack_bits(values), 19) == values).all()
    assert pack_bits(np.array([True, False, False, False, True])) == "88"


def test_packed_data_come_back_the_same_in_any_order(plan, runs, data, tmp_path):
    data.write(tmp_path / "one")
    other = StudyData.read(tmp_path / "one")
    for run in reversed(plan.runs):
        other.add(run, runs / run.name)
    other.write(tmp_path / "two")
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert all(StudyData.read(tmp_path / "two").has(run) for run in plan.runs)


def test_the_gate_says_of_packed_data_what_it_says_of_the_runs(plan, runs, data):
    folders = [runs / run.name for run in plan.runs if run.regime == "few"]
    (theirs,) = compare_runs([read_run(folder) for folder in folders]).verdicts.values()
    (ours,) = Results(plan, data).verdicts("few").values()
    assert ours.result == theirs.result == "PASS"
    assert ours.clauses == theirs.clauses and ours.comparisons == theirs.comparisons


def test_a_missing_control_is_not_decided(plan, runs):
    data = StudyData()
    for run in plan.runs:
        if run.cell != "reward_shuffled":
            data.add(run, runs / run.name)
    (verdict,) = Results(plan, data).verdicts("few").values()
    assert verdict.result == "NOT DECIDABLE" and any("shuffled" in reason for reason in verdict.reasons)


def test_an_arm_that_was_not_run_at_all_is_reported_as_undecided(plan, data, tmp_path):
    some = StudyData({name: dict(rows) for name, rows in data.rows.items()})
    for rows in some.rows.values():
        for run in [run for run in rows if "reward" in run]:
            rows.pop(run)
    text = write_report(Results(plan, some), tmp_path).read_text()
    assert "reward: NOT DECIDABLE" in text and "`few/reward`: 5 of 5 runs" in text


def test_the_report_says_what_the_data_say(plan, data, tmp_path):
    text = write_report(Results(plan, data), tmp_path).read_text()
    # The mean over seeds of (128 + 12 + seed) of 256 is 142 / 256; the original's (128 - 9 + seed) / 256 of two seeds.
    for figure in ("55.5 %", "46.7 %", "reward: PASS", "-3.3", "+4.7"):
        assert figure in text
    assert "Planned and not run yet" not in text
    assert (tmp_path / "few.png").stat().st_size > 1_000 and "<script" in (
        tmp_path / "fuyu_jax_report.html"
    ).read_text()


def test_the_report_has_the_headroom_and_the_searches_beside_it(plan, data, tmp_path):
    """Rows of the original's charts beside ours, and charts that are found from the report's folder."""
    (tmp_path / "headroom").mkdir()
    rows = [("oracle_search", "val_mixed", 8, 0.4375), ("oracle_reference", "val_mixed", 8, 0.97)]
    lines = [f"{method},{split},{k},256,{rate},0,1,1,1" for method, split, k, rate in rows]
    header = "method,split,k,n,solve_rate,low,high,mean_edits,mean_executions"
    (tmp_path / "headroom" / "headroom.csv").write_text("\n".join([header, *lines]) + "\n")
    shutil.copytree(ROOT / "reports" / "search" / "figures", tmp_path / "search" / "figures")
    shutil.copy(ROOT / "reports" / "headroom" / "headroom.png", tmp_path / "headroom")
    header = "method,split,public,cost,budget,n,solve_rate"
    lines = ["policy,all,4,executions,8,64,0.61", "policy,all,2,executions,8,64,0.71", "policy,all,4,passes,8,64,0.81"]
    (tmp_path / "search" / "search.csv").write_text("\n".join([header, *lines]) + "\n")
    text = write_report(Results(plan, data), tmp_path / "study", tmp_path).read_text()
    lines = text[text.index("### Headroom") : text.index("### Oracle")].splitlines()
    ends = next(line for line in lines if line.startswith("| val_mixed "))
    assert "75.0 %" in ends and "97.0 %" in ends and "43.8 %" in ends
    assert "61.0 %" in text and "71.0 %" not in text and "81.0 %" not in text
    assert "](../headroom/headroom.png)" in text and "](../search/figures/executions_all.png)" in text
    (tmp_path / "search" / "search.csv").write_text("method,split\npolicy\n")
    with pytest.raises(UserError, match="search.csv cannot be read"):
        write_report(Results(plan, data), tmp_path / "study", tmp_path)


def test_a_readme_gets_the_answer_and_the_arms_but_not_their_controls(plan, data, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- study:begin -->\nold\n<!-- study:end -->\nafter\n")
    front_page.write_part(Results(plan, data), tmp_path / "reports", readme)
    text = readme.read_text()
    assert text.startswith("before\n<!-- study:begin -->\n") and text.endswith("\n<!-- study:end -->\nafter\n")
    (reward,) = (line for line in text.splitlines() if line.startswith("| reward "))
    # 12 tasks of each 256 more than bc_continued in every seed; in the mean 142 of 256 are solved.
    assert "55.5 %" in reward and "+4.7" in reward and "PASS" in reward
    assert "old" not in text and "reward_shuffled" not in text and "](reports/few.png)" in text
    readme.write_text("no marks")
    with pytest.raises(UserError, match="lacks <!-- study:begin -->"):
        front_page.write_part(Results(plan, data), tmp_path / "reports", readme)


def test_a_cell_with_fewer_seeds_is_held_against_those_of_its_control(plan, data):
    few = StudyData({name: dict(rows) for name, rows in data.rows.items()})
    for seed in (0, 2, 3):
        for rows in few.rows.values():
            rows.pop(f"few-reward-s{seed}")
    text = front_page.part_text(Results(plan, few), ROOT / "reports", ROOT / "README.md")
    assert "+4.7" in next(line for line in text.splitlines() if line.startswith("| reward "))


def test_the_committed_report_is_what_the_committed_data_make(tmp_path):
    """So every number in it comes from the data; `test_readme.py` asks the same of the README's part."""
    folder = ROOT / "reports" / "study"
    results = Results(read_plan(ROOT / "experiments" / "study.toml"), StudyData.read(folder))
    made = write_report(results, tmp_path / "reports" / "study", ROOT / "reports").read_text()
    beside = os.path.relpath(ROOT / "reports", tmp_path / "reports" / "study")
    assert made.replace(f"]({beside}/", "](../") == (folder / "fuyu_jax_report.md").read_text()


def test_what_was_not_run_is_said(plan, tmp_path):
    text = write_report(Results(plan, StudyData()), tmp_path).read_text()
    assert "No arm was measured" in text and "`few/reward`: 5 of 5 runs" in text


# A stand-in for the pilot, which leaves what the test put aside as its outcome, and can be slow, or fail.
STAND_IN = """
import os, shutil, signal, sys, time
from pathlib import Path
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = Path(words.get("--out") or words["--resume"])
source = Path(os.environ["WHOLE_RUNS"]) / folder.name
with open(os.environ["WHOLE_RUNS"] + "/calls", "a") as calls:
    print(" ".join(sys.argv[1:3]), file=calls)
if "fail" in os.environ.get("DOES", "") and "s1" in folder.name:
    sys.exit(1)
if "--out" in words:
    folder.mkdir(parents=True)
    shutil.copy(source / "config.json", folder)
if "wait" in os.environ.get("DOES", ""):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    time.sleep(60)
shutil.copytree(source, folder, dirs_exist_ok=True)
"""


@pytest.fixture
def runner(plan, runs, tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    whole = tmp_path / "whole"
    shutil.copytree(runs, whole)
    monkeypatch.setenv("WHOLE_RUNS", str(whole))
    return Runner(plan, tmp_path / "out", tmp_path / "data", tmp_path / "stand_in.py", ["study.py"])


def calls(tmp_path):
    path = tmp_path / "whole/calls"
    return path.read_text().splitlines() if path.exists() else []


def test_each_run_is_made_once_even_without_its_folder(runner, tmp_path):
    some = runner.wanted(["anatomy/*"])
    runner.run(some)
    assert len(calls(tmp_path)) == 2 and runner.waiting(some) == []
    shutil.rmtree(tmp_path / "out")
    runner.run(some)
    assert len(calls(tmp_path)) == 2
    assert len(runner.waiting(runner.wanted())) == 15


def test_a_failing_run_is_told_and_the_others_go_on(runner, tmp_path, monkeypatch):
    monkeypatch.setenv("DOES", "fail")
    with pytest.raises(RunStopped, match="1 of 2 runs failed: anatomy-grpo_echo_original-s1"):
        runner.run(runner.wanted(["anatomy/*"]))
    assert [run.name for run in runner.waiting(runner.wanted(["anatomy/*"]))] == ["anatomy-grpo_echo_original-s1"]


def test_a_folder_of_another_run_is_refused(runner, plan, runs):
    mine, other = (run for run in plan.runs if run.regime == "anatomy")
    shutil.copytree(runs / other.name, runner.folder(mine))
    with pytest.raises(UserError, match="holds another run than is planned there"):
        runner.run([mine])


def test_a_pattern_that_fits_nothing_is_refused(runner):
    with pytest.raises(UserError, match="--only few/gpro fits no cell"):
        runner.wanted(["few/gpro"])


def test_single_runs_are_wanted_by_their_seed_and_stand_together(runner):
    names = [run.name for run in runner.wanted(["few/*/s3", "anatomy/*/s1", "few/reward/s0"])]
    assert names == [
        "few-reward-s0", "few-bc_continued-s3", "few-reward-s3", "few-reward_shuffled-s3",
        "anatomy-grpo_echo_original-s1",
    ]  # fmt: skip


def test_two_at_once_never_copy_the_same_policy(runner, tmp_path):
    two = dataclasses.replace(runner, jobs=2)
    some = two.wanted(["few/*/s0", "few/*/s1"])
    two.run(some)
    assert two.waiting(some) == [] and len(calls(tmp_path)) == 6
    assert sorted(path.name for path in (tmp_path / "out/said").iterdir()) == sorted(f"{run.name}.txt" for run in some)


def test_jobs_run_side_by_side_on_cores_of_their_own(tmp_path):
    """Of three jobs two share what they need alone: those run one after the other, the third beside them."""
    script = (
        "import os, sys, time; print(time.time(), sorted(os.sched_getaffinity(0))); time.sleep(1); print(time.time())"
    )
    jobs = [Job(n, [sys.executable, "-c", script], {}, n[0], tmp_path / f"{n}.txt") for n in ("a1", "a2", "b1")]
    begun, ended = [], []
    before = os.sched_getaffinity(0)
    run_side_by_side(jobs, 2, lambda job: begun.append(job.name), lambda job, status: ended.append((job.name, status)))
    assert begun == ["a1", "b1", "a2"] and sorted(ended) == [("a1", 0), ("a2", 0), ("b1", 0)]
    assert os.sched_getaffinity(0) == before
    said = {name: (tmp_path / f"{name}.txt").read_text().splitlines() for name in ("a1", "a2", "b1")}
    times = {name: (float(lines[0].split()[0]), float(lines[1])) for name, lines in said.items()}
    assert times["a1"][1] <= times["a2"][0] and times["b1"][0] < times["a1"][1]
    cores = {name: lines[0].split(" ", 1)[1] for name, lines in said.items()}
    assert len(before) == 1 or cores["a1"] != cores["b1"]


def test_cores_are_shared_evenly(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6, 7, 9})
    assert cores_of_each(1) == [{4, 5, 6, 7, 9}]
    assert cores_of_each(2) == [{4, 6, 9}, {5, 7}]
    assert cores_of_each(7) == [{4}, {5}, {6}, {7}, {9}, {4}, {5}]


def test_a_study_that_was_stopped_goes_on(plan, tmp_path, runner):
    """SIGTERM reaches the run, which saves; the next call resumes it."""
    script = textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
        from pathlib import Path
        from test_study import PLAN
        from fuyu_jax.runs.errors import run_main
        from fuyu_jax.study.plan import make_plan
        from fuyu_jax.study.runner import Runner
        here = Path({str(tmp_path)!r})
        runner = Runner(make_plan(PLAN), here / "out", here / "data", here / "stand_in.py", ["python", "study.py"])
        sys.exit(run_main(lambda argv: runner.run(runner.wanted(["anatomy/*"]))))
    """)
    environment = os.environ | {"DOES": "wait"}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
    folder = runner.folder(runner.wanted(["anatomy/*"])[0])
    until = time.monotonic() + 120
    while not (folder / "config.json").exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.5)  # until it waits
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and "interrupted; go on with: python study.py" in said
    runner.run(runner.wanted(["anatomy/*"]))
    begun = calls(tmp_path)
    assert begun[0].startswith("--out") and begun[1] == f"--resume {folder}" and len(begun) == 3


def test_the_cost_counts_what_is_to_run(runner):
    text = cost_text(runner.wanted(), runner.wanted(["anatomy/*"]))
    assert "grpo_echo_original" in text and "hours to go" in text
    row = next(line for line in text.splitlines() if "reward_shuffled" in line)
    assert row.split()[2:4] == ["5", "5"]


def test_a_plan_that_cannot_be_read_is_one_sentence(tmp_path, capsys):
    (tmp_path / "plan.toml").write_text("title = ")
    assert run_main(command.main, ["--plan", str(tmp_path / "plan.toml"), "--list"]) == 2
    assert "plan.toml cannot be read" in capsys.readouterr().err
