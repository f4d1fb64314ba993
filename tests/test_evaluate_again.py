"""A saved policy measured again: the run's own rows to the bit, other budgets, samples, and tasks from files."""

import functools
import itertools
import json

import jax
import numpy as np
import pytest

from fuyu_jax.evaluate import command
from fuyu_jax.evaluate.again import lane_groups, pass_rate, with_tokens
from fuyu_jax.evaluate.measure import Labels, chunks, greedy, measure_policy, pass_at, sampled_wins
from fuyu_jax.policy import make_play
from fuyu_jax.qwen3 import resolve_model
from fuyu_jax.runs import policies
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.policies import PolicyFolder, about_policy, build_policy
from fuyu_jax.runs.settings import PilotSettings
from fuyu_jax.runs.tables import OUTCOMES_COLUMNS, read_csv
from fuyu_jax.tokenizer import load_tokenizer
from vm.taskfile import read_tasks, write_tasks
from vm.tasks import make_tasks

build_once = functools.cache(build_policy)  # drawing a model's weights compiles
SETTINGS = PilotSettings(seed=2, budgets=(0, 3, 8), eval_tasks=4)
SPLITS = ("val_mixed", "fresh_paired")
SAMPLES = 4


class Run:
    """A run whose policy was never trained, only moved, so that its STOP is near one half and edits are all alike."""

    def __init__(self, path):
        built = build_once(SETTINGS)
        leaves, tree = jax.tree.flatten(built.params.trained)
        keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), len(leaves))
        moved = [leaf + 0.05 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
        self.params = built.params._replace(trained=jax.tree.unflatten(tree, moved))
        self.reader = built.reader
        self.tasks = {split: make_tasks(split, 0, SETTINGS.eval_tasks) for split in SPLITS}
        self.play = make_play(built.reader, SETTINGS.no_repeat)
        labels = Labels(SETTINGS.arm, "bc_policy", SETTINGS.seed)
        outcomes = measure_policy(greedy(self.play, self.params), self.tasks, SETTINGS.budgets, labels)
        folder = RunFolder.create(str(path), "run")
        folder.write_json("config.json", SETTINGS.to_dict())
        folder.write_csv("outcomes.csv", OUTCOMES_COLUMNS, outcomes.rows())
        about = about_policy(SETTINGS, built.source)
        PolicyFolder.of_run(folder.path).save("bc_policy", self.params.trained, about)
        self.path = folder.path

    def rows(self, **wanted):
        return rows_of(self.path, **wanted)


def rows_of(folder, **wanted):
    rows = read_csv(folder / "outcomes.csv")
    return [row for row in rows if all(row[name] in values for name, values in wanted.items())]


@pytest.fixture(scope="module")
def built_once():
    """Policies of the same settings are drawn once in this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "build_policy", build_once)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory, built_once):
    return Run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def again(run, tmp_path_factory):
    """Fewer of the run's budgets and a new one, fewer tasks, one of the splits, and samples."""
    out = tmp_path_factory.mktemp("again") / "out"
    words = ["--run", str(run.path), "--k", "3", "5", "8", "--splits", "fresh_paired", "--tasks", "2"]
    assert run_main(command.main, [*words, "--sampled", str(SAMPLES), "--out", str(out)]) == 0
    return out


def test_the_runs_own_rows_come_out_to_the_bit(run, again):
    same = {"k": ("3", "8"), "split": ("fresh_paired",), "task": ("0", "1")}
    expected = run.rows(**same)
    assert len(expected) == 2 * 4 * 2 and len({row["edits"] for row in expected}) > 4
    assert rows_of(again, **same) == expected


def test_a_budget_between_follows_the_same_policy(again):
    """A policy sees its budget, so nothing more is known of K=5 than its sizes."""
    rows = rows_of(again, k=("5",), mode=("forced",))
    assert [row["task"] for row in rows] == ["0", "1"] and all(len(row["edits"].split()) == 5 for row in rows)
    assert {row["k"] for row in rows_of(again)} == {"3", "5", "8"}


def test_samples_are_those_of_the_run(run, again):
    rates = json.loads((again / "results.json").read_text())["sampled"]["fresh_paired"]
    assert set(rates) == {"3", "5", "8"} and set(rates["8"]) == {"pass_at_1", "pass_at_2", "pass_at_4"}
    lanes = len(SETTINGS.budgets)
    four = {"fresh_paired": run.tasks["fresh_paired"]}
    of_the_run = sampled_wins(run.play, run.params, chunks(four["fresh_paired"])[0], 8, SAMPLES, lanes, SETTINGS.seed)
    rate = pass_at(run.play, run.params, four, 8, SAMPLES, lanes, SETTINGS.seed)["fresh_paired"]
    assert of_the_run.shape == (4, SAMPLES) and of_the_run.any(axis=1).mean() == rate
    wins = of_the_run[:2]
    assert rates["8"]["pass_at_4"] == wins.any(axis=1).mean()
    assert rates["8"]["pass_at_1"] == pytest.approx(wins.mean())


def test_the_folder_says_what_was_measured(run, again):
    assert sorted(path.name for path in again.iterdir()) == [
        "config.json", "dataset_manifest.json", "experiment_log.md", "metrics.csv", "outcomes.csv", "results.json",
    ]  # fmt: skip
    config = json.loads((again / "config.json").read_text())
    assert config["run"] == str(run.path) and config["phase"] == "bc_policy" and config["k"] == [3, 5, 8]
    manifest = json.loads((again / "dataset_manifest.json").read_text())
    assert manifest["data"]["fresh_paired"]["tasks"] == 2 and len(manifest["policy"]["sha256"]) == 64


def test_a_file_of_tasks_without_plans_gives_the_same_rows(run, tmp_path):
    """Exported, its plans taken out: the tokens now come from the text, and nothing else changes."""
    file = tmp_path / "tasks.jsonl"
    assert run_main(command.main, ["--run", str(run.path), "--export_tasks", str(file), "--splits", *SPLITS]) == 0
    assert file.read_text() == write_tasks(run.tasks.values())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "plan"}) + "\n" for line in lines))
    out = tmp_path / "out"
    assert run_main(command.main, ["--run", str(run.path), "--tasks_file", str(file), "--out", str(out)]) == 0
    assert rows_of(out) == run.rows()


def test_tokens_of_text_are_those_of_the_plans(run):
    tokenizer = load_tokenizer(resolve_model("tiny"))
    for split, tasks in with_tokens(run.tasks, tokenizer, run.reader.prompt_tokens).items():
        ids, mask = run.reader.prompt_ids(run.tasks[split].arrays)
        np.testing.assert_array_equal(tasks.arrays.ids, ids)
        np.testing.assert_array_equal(tasks.arrays.mask, mask)


def test_long_prompts_make_room_for_themselves(run):
    tasks = run.tasks["val_mixed"]
    tokenizer = load_tokenizer(resolve_model("tiny"))
    longest = max(len(tokenizer.encode(prompt)) for prompt in tasks.prompts)
    read = with_tokens({"val_mixed": tasks}, tokenizer, 2)["val_mixed"]
    assert read.arrays.ids.shape == (4, longest)


def test_exporting_needs_no_run(tmp_path):
    file = tmp_path / "deep" / "tasks.jsonl"
    words = ["--splits", "val_mixed", "--data_seed", "7", "--tasks", "3", "--export_tasks", str(file)]
    assert run_main(command.main, words) == 0
    expected = make_tasks("val_mixed", 7, 3)
    read = read_tasks(file.read_text()).splits["val_mixed"]
    assert all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(read.arrays), jax.tree.leaves(expected.arrays), strict=True)
    )


@pytest.mark.parametrize(
    ("budgets", "own", "groups"),
    [
        ((0, 4, 8), (0, 4, 8, 12), [(0, 4, 8, 12)]),
        ((3,), (0, 4), [(3, 3)]),
        ((1, 2, 3, 4), (0, 4), [(0, 4), (1, 2), (3, 3)]),
        ((5, 6, 7), (8,), [(5,), (6,), (7,)]),
    ],
)
def test_lanes(budgets, own, groups):
    assert lane_groups(budgets, own) == groups


@pytest.mark.parametrize(("wins", "samples", "n"), [([0, 1, 2, 5], 5, 2), ([3], 8, 4), ([0], 3, 3), ([1], 3, 3)])
def test_pass_rate_is_the_mean_over_all_choices_of_samples(wins, samples, n):
    """By counting the choices one by one."""
    rates = []
    for count in wins:
        marks = [True] * count + [False] * (samples - count)
        rates.append(np.mean([any(choice) for choice in itertools.combinations(marks, n)]))
    assert pass_rate(np.array(wins), samples, n) == pytest.approx(np.mean(rates))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--run is missing"),
        (["--run", "nowhere"], "nowhere is no run"),
        (["--run", "RUN", "--phase", "bc"], "no policy 'bc'; use one of bc_policy"),
        (["--run", "RUN", "--k", "4", "17"], "--k is '17'"),
        (["--run", "RUN", "--k", "8", "4"], "in rising order"),
        (["--run", "RUN", "--splits", "val"], "--splits names 'val'"),
        (["--run", "RUN", "--splits", "val_mixed", "val_mixed"], "give each split once"),
        (["--run", "RUN", "--tasks", "0"], "--tasks is '0'"),
        (["--run", "RUN", "--sampled", "x"], "--sampled is 'x'"),
        (["--run", "RUN", "--data_seed", "-1"], "--data_seed"),
        (["--run", "RUN", "--tasks_file", "F", "--tasks", "3"], "--tasks is about generated tasks"),
        (["--run", "RUN", "--sample", "3"], "did you mean --sampled?"),
    ],
)
def test_bad_command_lines_are_one_sentence(words, said, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_main(command.main, [str(run.path) if word == "RUN" else word for word in words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def task(**changes):
    pairs = [[n, None] for n in range(5)]
    line = {"prompt": "For the number x: add 1.", "inputs": pairs, "targets": [1, 2, 3, 4, 5], "split": "mine"}
    return json.dumps(line | changes)


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        (task(prompt="For the number x: add a gazebo."), [], "no token for 'gazebo'"),
        (task(targets=[1]), [], "line 1: targets must be"),
        (task(public=3), [], "3 public examples, but the policy reads 4"),
        (task(), ["--splits", "yours"], "--splits names 'yours', but"),
    ],
)
def test_bad_files_are_named_and_nothing_is_written(line, words, said, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text(line)
    monkeypatch.setattr(command, "load_policy", lambda *_: loaded(run))
    assert run_main(command.main, ["--run", str(run.path), "--tasks_file", "tasks.jsonl", *words]) == 2
    error = capsys.readouterr().err
    assert "tasks.jsonl" in error and said in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]


def loaded(run):
    return command.LoadedPolicy(run.reader, run.params, SETTINGS, "bc_policy", ())


def test_files_in_use_are_refused(run, again, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "load_policy", lambda *_: loaded(run))
    before = (again / "outcomes.csv").read_bytes()
    words = ["--run", str(run.path), "--splits", "val_mixed", "--tasks", "2"]
    assert run_main(command.main, [*words, "--out", str(again)]) == 2
    assert run_main(command.main, [*words, "--export_tasks", str(again / "outcomes.csv")]) == 2
    assert run_main(command.main, [*words[:2], "--tasks_file", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "is in use" in errors[0] and "exists already" in errors[1] and "cannot be read" in errors[2]
    assert (again / "outcomes.csv").read_bytes() == before
