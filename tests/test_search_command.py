"""`experiments/search.py`: its files, whose figures follow from each other, and what it refuses."""

import json

import numpy as np
import pytest

from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.tables import read_csv
from fuyu_jax.search import command
from fuyu_jax.search.curves import CURVE_COLUMNS
from fuyu_jax.search.guide import Limits

METHODS = ["policy", "policy_value", "bottom_up"]
BUDGETS = [1, 4, 8]
TASKS = 8


@pytest.fixture(scope="module")
def results(untrained_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("search") / "out"
    words = [
        "--run",
        str(untrained_run),
        "--splits",
        "val_mixed",
        "fresh_standard",
        "--tasks",
        str(TASKS),
        "--lanes",
        "8",
    ]
    words += ["--methods", *METHODS, "--budget", *map(str, BUDGETS), "--out", str(out)]
    assert run_main(command.main, words) == 0
    return out


def test_the_folder_holds_tables_charts_and_where_they_come_from(results):
    names = sorted(str(path.relative_to(results)) for path in results.rglob("*") if path.is_file())
    charts = [f"figures/{cost}_{split}.png" for cost in ("executions", "passes")
              for split in ("all", "fresh_standard", "val_mixed")]  # fmt: skip
    assert names == sorted([
        "areas.csv", "config.json", "dataset_manifest.json", "differences.csv", "experiment_log.md", "outcomes.csv",
        "ratios.csv", "results.json", "search.csv", "search.md", "timing.csv", "figures/spurious.png", *charts,
    ])  # fmt: skip
    report = (results / "search.md").read_text()
    assert report.startswith("# Verified search") and "## hard_composition" not in report and "## val_mixed" in report
    config = json.loads((results / "config.json").read_text())
    assert config["policy"].startswith("python experiments/pilot.py") and config["policy"] in report
    assert config["phase"] == "bc_policy" and config["limits"]["budget"] == 8
    tables = json.loads((results / "results.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert len(tables["search"]) == len(read_csv(results / "search.csv"))


def test_rates_can_be_recomputed_from_outcomes(results):
    outcomes, rates = read_csv(results / "outcomes.csv"), read_csv(results / "search.csv")
    assert len(outcomes) == len(METHODS) * 2 * 3 * TASKS and tuple(rates[0]) == CURVE_COLUMNS
    seen = set()
    for row in rates:
        mine = [one for one in outcomes if (one["method"], one["public"]) == (row["method"], row["public"])
                and row["split"] in ("all", one["split"])]  # fmt: skip
        budgets = BUDGETS if row["method"] != "bottom_up" else [*BUDGETS, 32, 128]
        letters = [one[f"by_{row['cost']}"][budgets.index(int(row["budget"]))] for one in mine]
        assert len(letters) == int(row["n"])
        assert float(row["solve_rate"]) == np.mean([letter == "1" for letter in letters])
        assert int(row["spurious"]) == letters.count("x")
        seen.add((row["method"], row["public"], row["cost"]))
    executed = {(method, public, "executions") for method in METHODS for public in "124"}
    assert seen == executed | {(method, public, "passes") for method in METHODS[:2] for public in "124"}


def test_doing_nothing_is_a_budget_of_one(results):
    """One task in eight starts solved."""
    rows = [row for row in read_csv(results / "search.csv") if row["budget"] == "1" and row["public"] == "4"]
    shares = {row["solve_rate"] for row in rows if row["method"] in METHODS[:2] and row["cost"] == "executions"}
    assert shares == {"0.125"}


def test_methods_are_compared_with_the_value_guided_search(results):
    rows = read_csv(results / "differences.csv")
    assert {row["method"] for row in rows} == {"policy", "bottom_up"} and {row["base"] for row in rows} == {
        "policy_value"
    }
    ratios = [row for row in read_csv(results / "ratios.csv") if (row["split"], row["public"]) == ("all", "4")]
    assert [row["method"] for row in ratios] == METHODS and ratios[1]["times"] == "1" and ratios[1]["budget"] == "8"
    seconds = [float(row["mean_seconds"]) for row in read_csv(results / "timing.csv")]
    assert min(seconds) > 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "--run is missing"),
        (["--budget", "0", "8"], "begin with 1"),
        (["--budget", "8", "4"], "rising order"),
        (["--methods", "mcts"], "'mcts'"),
        (["--methods", "policy", "policy"], "each name once"),
        (["--splits", "train"], "'train'"),
        (["--same_outputs", "forget"], "'forget'"),
        (["--edits", "481"], "--edits is '481'"),
        (["--budgets", "8"], "--budget"),
    ],
)
def test_bad_commands_end_with_one_sentence(words, part, capsys):
    words = words and ["--run", "nowhere", *words]
    assert run_main(command.main, words) == 2
    message = capsys.readouterr().err
    assert part in message and message.count("\n") == 1


def test_a_folder_in_use_is_refused_before_anything_is_loaded(results, capsys):
    assert run_main(command.main, ["--run", "nowhere", "--out", str(results)]) == 2
    assert "is in use" in capsys.readouterr().err


def test_settings_of_a_command_line():
    given = command.parse_settings(["--run", "R", "--budget", "2", "64", "--attempts", "3", "--confirm", "0"])
    assert given.limits == Limits(budget=64, attempts=3, confirm=False)
    assert given.methods == tuple(method for method in command.METHODS if method != "exhaustive_3")
