"""Pooling over seeds against numbers worked by hand."""

import json

import numpy as np
import pytest

from experiments import seeds
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.runs.errors import UserError, run_main
from fuyu_jax.runs.marked import marks
from fuyu_jax.runs.pooling import README_PART, pool_runs, pooled_table, write_pool
from fuyu_jax.runs.tables import OUTCOMES_COLUMNS, to_csv

README_MARKS = marks(README_PART)
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


def edit(name, change):
    def apply(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(change(content)))

    return apply


def without(**values):
    """Takes the outcomes with these values out of a run."""

    def apply(folder):
        outcomes = Outcomes.read(folder / "outcomes.csv")
        keep = ~np.all([getattr(outcomes, name) == value for name, value in values.items()], axis=0)
        (folder / "outcomes.csv").write_text(to_csv(OUTCOMES_COLUMNS, outcomes.take(keep).rows()))

    return apply


def renamed(old, new):
    def apply(folder):
        path = folder / "outcomes.csv"
        path.write_text(path.read_text().replace(old, new))

    return apply


def no_manifest(folder):
    (folder / "dataset_manifest.json").unlink()


DAMAGE = {
    "config_list": (edit("config.json", lambda _: [1]), "config.json has no valid object"),
    "no_seed": (edit("config.json", lambda c: {"arm": c["arm"]}), "config.json has no valid seed"),
    "seed_text": (edit("config.json", lambda c: c | {"seed": "1"}), "config.json has no valid seed"),
    "other_seed": (edit("config.json", lambda c: c | {"seed": 9}), "holds seed 1, config.json says 9"),
    "no_arm": (edit("config.json", lambda c: {"seed": 1}), "config.json has no valid arm"),
    "manifest_text": (edit("dataset_manifest.json", lambda _: "x"), "dataset_manifest.json has no valid object"),
    "no_machine": (edit("dataset_manifest.json", lambda m: m | {"machine": None}), "no valid machine"),
    "no_cores": (edit("dataset_manifest.json", lambda m: m | {"machine": {"processor": "P"}}), "machine.cores"),
    "git_text": (edit("dataset_manifest.json", lambda m: m | {"git": "abc"}), "no valid git"),
    "no_command": (edit("dataset_manifest.json", lambda m: m | {"command": None}), "no valid command"),
    "no_manifest": (no_manifest, "is no finished run"),
    "no_column": (renamed("split,k", "split,budget"), "has no column 'k'"),
    "no_baseline": (without(phase="random_valid"), "no outcomes of random_valid in val_mixed at K=8"),
    "no_copied": (without(phase="bc_policy"), "no outcomes of bc_policy in val_mixed at K=8"),
    "no_update": (without(phase="grpo_echo_r1_policy"), "no decision update"),
    "no_learned": (without(mode="learned"), "no decision update"),
    "other_round": (renamed("grpo_echo_r1", "grpo_echo_r2"), "ends with grpo_echo_r2_policy"),
    "no_k12": (
        without(phase="grpo_echo_r1_policy", split="hard_composition"),
        "no outcomes of grpo_echo_r1_policy in hard_composition at K=12",
    ),
    "one_task_less": (without(phase="bc_policy", task=3), "bc_policy and do_nothing are of different tasks"),
    "fewer_tasks": (without(task=3), "measured different tasks"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", DAMAGE)
def test_a_run_that_is_not_whole_is_named(name, runs, tmp_path, capsys):
    damage, said = DAMAGE[name]
    damage(runs[1])
    assert run_main(seeds.main, [*map(str, runs), "--out", str(tmp_path / "reports")]) == 2
    message = capsys.readouterr().err
    assert said in message and str(runs[1]) in message and message.count("\n") == 1
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize(
    "content", [None, b"no marks", README_MARKS[0].encode(), "\n".join(README_MARKS[::-1]).encode(), b"\xff"]
)
def test_a_readme_without_marks_changes_nothing(content, runs, tmp_path, capsys):
    readme = tmp_path / "README.md"
    if content is not None:
        readme.write_bytes(content)
    out = tmp_path / "reports"
    assert run_main(seeds.main, [*map(str, runs), "--out", str(out), "--readme", str(readme)]) == 2
    message = capsys.readouterr().err
    assert f"--readme {readme}" in message and message.count("\n") == 1
    assert not out.exists()
    assert content is None or readme.read_bytes() == content


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_place_of_the_folder_is_refused(below, runs, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    readme = tmp_path / "README.md"
    readme.write_text("\n".join(README_MARKS))
    out = tmp_path / "file" / below
    assert run_main(seeds.main, [*map(str, runs), "--out", str(out), "--readme", str(readme)]) == 2
    assert f"--out {out} cannot be made a folder" in capsys.readouterr().err
    assert readme.read_text() == "\n".join(README_MARKS) and (tmp_path / "file").read_text() == "x"


def test_a_folder_in_place_of_a_report_is_refused(runs, tmp_path, capsys):
    (tmp_path / "reports/pilot.md").mkdir(parents=True)
    assert run_main(seeds.main, [*map(str, runs), "--out", str(tmp_path / "reports")]) == 2
    assert "pilot.md cannot be written" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["pilot.md"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "the following arguments are required: RUN, --out; --help lists the options."),
        ("run", "the following arguments are required: --out; --help lists the options."),
        ("run --oot x", "unknown option --oot; did you mean --out?"),
        ("run --out x --read y", "unknown option --read; did you mean --readme?"),
        ("run --out", "argument --out: expected one argument; --help lists the options."),
    ],
)
def test_a_wrong_command_line_is_one_sentence(words, sentence, capsys):
    assert run_main(seeds.main, words.split()) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"
