"""What `--list` says: work counted by hand, runs that ended, and memory that a model needs before it is loaded."""

import dataclasses
import json
from pathlib import Path

import pytest
from qwen3_samples import SMALL, file_tensors, write_folder

from fuyu_jax import pilot
from fuyu_jax.runs import costs, memory
from fuyu_jax.runs.arguments import parse_runs
from fuyu_jax.runs.errors import UserError, run_main
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.memory import bytes_needed, check_memory, memory_limit
from fuyu_jax.runs.settings import ARMS, PRESETS, PilotSettings, preset_settings

ROOT = Path(__file__).resolve().parents[1]


def test_work_is_what_the_settings_ask_for():
    bc = PilotSettings(arm="bc", bc_updates=10, bc_epochs=2, batch_tasks=4, states_per_task=2, eval_tasks=65)
    measured = 5 * 128 * 4 * 12  # splits, tasks in chunks of 64, lanes, steps of the longest
    assert costs.work_of(bc) == (10 * 8, 2 * measured)
    sizes = {"updates": 6, "rounds": 3, "rollout_tasks": 8, "rollout_batch": 4, "group": 2, "states_per_rollout": 3}
    grpo = dataclasses.replace(bc, arm="grpo_echo", **sizes)
    turns = 3  # of two updates each
    assert costs.work_of(grpo) == (80 + 6 * (24 + 8), 5 * measured + turns * 16 * 16)
    assert costs.work_of(dataclasses.replace(grpo, bc_replay=0.0, reuse=3)) == (80 + 6 * 24, 5 * measured + 16 * 16)
    assert costs.work_of(dataclasses.replace(grpo, arm="bc_continued"))[1] == 5 * measured
    awr = dataclasses.replace(grpo, arm="awr", awr_actions=5, awr_samples=2)
    assert costs.work_of(awr)[1] == 5 * measured + turns * 16 * 16 * (1 + 3 * 5 * 2)


def test_the_rates_are_those_of_the_committed_benchmark():
    report = json.loads((ROOT / "reports/bench_model.json").read_text())
    rate = {(row["bench"], row["case"], row["batch"]): row["rate"] for row in report["rows"]}
    assert round(rate["train", "packed, pilot", 64]) == costs.STATES_A_SECOND
    assert round(rate["rollout", "prompt cache", 16]) == costs.DECISIONS_A_SECOND


def ended(root, name, line, **settings):
    folder = RunFolder.create(str(root / name), "run")
    folder.write_json("config.json", PilotSettings(**settings).to_dict())
    folder.log(line)


def test_runs_that_ended_with_a_presets_own_settings_count(tmp_path):
    says = "finished: training and measuring took {} minutes, 2.00 GiB at most"
    ended(tmp_path, "a", says.format(5.5), seed=1, quiet=True)
    ended(tmp_path, "b", says.format(6.5), seed=2)
    ended(tmp_path, "other_sizes", says.format(60.0), updates=7)
    ended(tmp_path, "cut_short", "prepared")
    (tmp_path / "no_run").mkdir()
    (tmp_path / "no_run" / "experiment_log.md").write_text(says.format(1.0))
    assert costs.finished_runs(tmp_path) == {("grpo_echo", "pilot"): [5.5, 6.5]}
    assert costs.finished_runs(tmp_path / "nowhere") == {}


def test_the_list_names_every_arm_and_preset_and_its_basis(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(costs, "measure_slowness", lambda: 2.0)
    ended(tmp_path / "runs", "1", "finished: training and measuring took 5.5 minutes", arm="process_dpo")
    with pytest.raises(SystemExit) as left:
        parse_runs(["--list"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.strip()}
    assert set(ARMS) | set(PRESETS) <= set(rows) and set(costs.ABOUT) == set(ARMS)
    assert "5.5 (1 run)" in rows["process_dpo"] and "about" in rows["process_dpo"]
    slow = costs.minutes_of(preset_settings("study", "awr"), 2.0)
    assert f"about {round(slow)}" in rows["awr"] and slow == 2 * costs.minutes_of(preset_settings("study", "awr"), 1.0)
    assert "median of finished runs under runs/" in printed and "times 2.00" in printed
    assert max(map(len, printed.splitlines()[:14])) < 160
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


def test_slowness_is_the_least_time_over_the_references():
    ticks = iter([0, 1, 10, 10.5, *range(20, 34)])
    assert costs.measure_slowness(lambda: next(ticks)) == pytest.approx(0.5 / costs.CALCULATION_SECONDS)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_folder(folder, SMALL, file_tensors(SMALL))
    return str(folder)


def test_bytes_of_a_model(model):
    weights = sum(tensor.size for tensor in file_tensors(SMALL).values())
    assert bytes_needed(PilotSettings(model=model, lora_rank=0)) == 16 * weights
    few = PilotSettings(model=model, lora_targets="q_proj")
    assert bytes_needed(few) == 4 * weights, "adapters are left out where not all are known"
    assert bytes_needed(dataclasses.replace(few, dtype="bfloat16")) == 2 * weights
    assert 4 * weights < bytes_needed(PilotSettings(model=model))


def test_a_run_that_cannot_fit_is_refused_before_it_starts(model, tmp_path, monkeypatch, capsys):
    check_memory(PilotSettings(), limit=0)  # the embedded model always fits
    settings = PilotSettings(model=model)
    needed = bytes_needed(settings)
    check_memory(settings, limit=needed)
    with pytest.raises(UserError, match=r"use --quant nf4 --dtype bfloat16, which needs .* GiB, or a smaller model\.$"):
        check_memory(settings, limit=needed - 1)
    with pytest.raises(UserError, match=r"of memory; use a smaller model\.$"):
        check_memory(settings, limit=1)
    monkeypatch.setattr(memory, "memory_limit", lambda: 1)
    out = tmp_path / "run"
    assert run_main(pilot.main, ["--model", model, "--out", str(out)]) == 2
    assert f"--model {model} needs" in capsys.readouterr().err and not out.exists()


def test_the_limit_is_the_containers_where_it_is_less(tmp_path, monkeypatch):
    whole = memory_limit()
    assert whole > 2**28
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", (limit, tmp_path / "missing"))
    for text, expected in (("max\n", None), ("1000000\n", 1_000_000)):
        limit.write_text(text)
        assert memory_limit() == expected if expected else memory_limit() >= whole
