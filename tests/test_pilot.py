"""The main job in little: what it leaves behind, that all of it agrees, and that nothing is compiled twice."""

import json
import logging
import re
import shlex
from collections import Counter

import jax
import pytest

from fuyu_jax import pilot
from fuyu_jax.evaluate.metrics import metrics_from_outcomes
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.learn.training import Diverged
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.policies import load_policy
from fuyu_jax.runs.tables import METRICS_COLUMNS, read_csv, to_csv

LITTLE = shlex.split(
    "--preset smoke --bc_updates 4 --updates 4 --rounds 2 --batch_tasks 4 --rollout_tasks 8 --rollout_batch 4 "
    "--states_per_task 2 --eval_tasks 2 --oracle_width 1 --seed 3"
)
PHASES = ["bc_policy_e1", "bc_policy", "grpo_echo_r1_policy", "grpo_echo_r2_policy"]
MODES = ["forced", "learned", "value_gated", "verified"]
FILES = [
    "checkpoints", "config.json", "dataset_manifest.json", "episodes.jsonl", "experiment_log.md", "metrics.csv",
    "outcomes.csv", "report.html", "report.md", "results.json", "train_log.csv",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, and how often each function was compiled for it."""
    folder = tmp_path_factory.mktemp("pilot") / "run"
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("jax._src.interpreters.pxla")
    logger.addHandler(handler)
    try:
        with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder.parent)  # where copied policies are shared
            assert run_main(pilot.main, [*LITTLE, "--out", str(folder)]) == 0
    finally:
        logger.removeHandler(handler)
    compiled = Counter(match[1] for text in messages if (match := re.match(r"Compiling (?:jit\()?(\w+)\)?", text)))
    return folder, compiled


def test_every_file_is_there(run):
    folder, _ = run
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "figures"])
    assert len(list((folder / "figures").glob("*.png"))) >= 8
    for name in ("config.json", "dataset_manifest.json", "results.json"):
        text = (folder / name).read_text()
        assert not re.search(r"\b(NaN|Infinity)\b", text), name
        json.loads(text)


def test_the_page_steps_through_the_last_policys_episodes(run):
    folder, _ = run
    episodes = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    assert len(episodes) == 5 * 2 and {episode["phase"] for episode in episodes} == {PHASES[-1]}
    measured = {
        (row["split"], int(row["task"])): row
        for row in read_csv(folder / "outcomes.csv")
        if (row["phase"], row["mode"]) == (PHASES[-1], "learned")
        and row["k"] == ("12" if row["split"] == "hard_composition" else "8")
    }
    for episode in episodes:
        row = measured[episode["split"], episode["task"]]
        assert (int(row["start_solved"]), int(row["solved"])) == (episode["start_solved"], episode["solved"])
        assert int(row["steps"]) == episode["edits"]
    assert 100_000 < (folder / "report.html").stat().st_size < 5_000_000


def test_metrics_follow_from_outcomes(run):
    folder, _ = run
    outcomes = Outcomes.read(folder / "outcomes.csv")
    assert to_csv(METRICS_COLUMNS, metrics_from_outcomes(outcomes)) == (folder / "metrics.csv").read_text()


def test_every_phase_mode_split_and_budget_was_measured(run):
    rows = read_csv(run[0] / "metrics.csv")
    cells = {(row["phase"], row["mode"], row["split"], row["k"]) for row in rows}
    splits = ["val_mixed", "fresh_standard", "fresh_paraphrase", "fresh_paired", "hard_composition", "all"]
    policies = {(p, m, s, k) for p in PHASES for m in MODES for s in splits for k in ("0", "4", "8", "12")}
    baselines = {("do_nothing", "forced"), ("random_valid", "forced")}
    baselines |= {("oracle_reference", "verified"), ("oracle_search", "verified")}
    assert cells == policies | {(p, m, s, k) for p, m in baselines for s in splits for k in ("0", "4", "8", "12")}


def test_training_was_logged(run):
    rows = read_csv(run[0] / "train_log.csv")
    kinds = Counter((row["kind"], row["phase"]) for row in rows)
    assert kinds["update", "bc_policy"] == 4 and kinds["update", "grpo_echo"] == 4
    assert kinds["signals", "grpo_echo"] == 2
    diagnosed = {(row["phase"], row["state_set"]) for row in rows if row["kind"] == "diagnostics"}
    assert diagnosed >= {(phase, states) for phase in PHASES[1:] for states in ("oracle_path", "bc_states")}
    assert all(row["skipped_updates"] == "0" for row in rows if row["kind"] == "update")
    copied = [row for row in rows if row["kind"] == "diagnostics" and row["phase"] == "bc_policy"]
    assert all(float(row["kl_to_bc"]) == 0.0 for row in copied)


def test_the_report_shows_the_original_beside_ours(run):
    text = (run[0] / "report.md").read_text()
    assert "7.1 %" in text and "oracle" in text and "figures/" in text


def test_big_functions_are_compiled_once(run):
    _, compiled = run
    once = (
        "clone_gradient", "update_gradient", "_step", "credit_decisions", "score", "diagnose", "search", "repair",
        "think",
    )  # fmt: skip
    assert {name: compiled[name] for name in once} == dict.fromkeys(once, 1)
    # Argmax and sampled episodes share one function; the group of a rollout is another batch than the budgets here.
    assert compiled["play"] == 2


def test_a_run_that_copied_otherwise_is_refused_before_a_folder_is_made(run, tmp_path, capsys):
    words = [*LITTLE, "--learning_rate", "0.5", "--bc_from", str(run[0]), "--out", str(tmp_path / "new")]
    assert run_main(pilot.main, words) == 2
    assert "--learning_rate 0.004, but here it is 0.5" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_refused(run, capsys):
    folder, _ = run
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run_main(pilot.main, [*LITTLE, "--out", str(folder)]) == 2
    assert str(folder) in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--arm", "none"], "grpo_echo"),
        (["--preset", "huge"], "smoke"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--model", "nobody/nothing"], "hf download"),
        (["--eval_tasks", "-3"], "--eval_tasks"),
        (["--budgets", "4,17"], "--budgets"),
        (["--upates", "3"], "--updates"),
        (["--rollout_batch", "3"], "--rollout_tasks"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(options, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_main(pilot.main, options) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_a_run_whose_training_diverges_is_saved_and_told(tmp_path, monkeypatch, capsys):
    class Stopped(pilot.Pilot):
        def _phases(self, play):
            yield "bc_policy", self.built.params
            raise Diverged(40, self.built.params)

        def run(self):
            list(self._guarded(None))

    monkeypatch.setattr(pilot, "Pilot", Stopped)
    monkeypatch.chdir(tmp_path)
    assert run_main(pilot.main, [*LITTLE, "--out", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert "update 40" in told and str(tmp_path / "run/checkpoints/stopped_at_update_40") in told
    assert load_policy(tmp_path / "run", "stopped_at_update_40").phase == "stopped_at_update_40"
