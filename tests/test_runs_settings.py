"""The command line: what it accepts, what it refuses, and in which words."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys

import pytest

from fuyu_jax.runs.arguments import parse_runs
from fuyu_jax.runs.errors import UserError, run_main
from fuyu_jax.runs.settings import ARMS, PRESETS, PilotSettings, sees_oracle_labels

FIELDS = [item.name for item in dataclasses.fields(PilotSettings)]
SWITCHES = [item.name for item in dataclasses.fields(PilotSettings) if isinstance(item.default, bool)]


def parse_settings(argv):
    (settings,) = parse_runs(argv)
    return settings


def test_several_seeds_are_several_runs(tmp_path):
    runs = parse_runs(["--arm", "bc", "--seeds", "0", "2", "--out", str(tmp_path / "all")])
    assert [run.seed for run in runs] == [0, 2]
    assert [run.out for run in runs] == [str(tmp_path / "all/seed_0"), str(tmp_path / "all/seed_2")]
    assert [run.out for run in parse_runs(["--seeds", "4"])] == [None]
    for argv, part in (
        (["--seeds", "1", "1"], "once"),
        (["--seeds", "1", "--seed", "2"], "--seed "),
        (["--seeds", "x"], "'x'"),
    ):
        with pytest.raises(UserError, match=part):
            parse_runs(argv)


def test_no_option_is_the_pilot_preset():
    assert parse_settings([]) == PilotSettings()
    assert PilotSettings().preset == "pilot"
    assert PRESETS["pilot"] == {}


def test_an_option_wins_over_the_preset_wherever_it_stands():
    smoke = PRESETS["smoke"]
    assert parse_settings(["--preset", "smoke"]).eval_tasks == smoke["eval_tasks"]
    for argv in (["--eval_tasks", "7", "--preset", "smoke"], ["--preset", "smoke", "--eval_tasks=7"]):
        settings = parse_settings(argv)
        assert settings.eval_tasks == 7
        assert settings.bc_updates == smoke["bc_updates"]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_and_name_real_fields(preset):
    assert set(PRESETS[preset]) <= set(FIELDS)
    settings = parse_settings(["--preset", preset])
    assert settings.preset == preset
    for name, value in PRESETS[preset].items():
        assert getattr(settings, name) == value


def test_the_original_preset_has_the_original_sizes():
    original = parse_settings(["--preset", "original"])
    assert (original.demos, original.eval_tasks, original.rounds) == (32, 16, 1)
    assert (original.budgets, original.start) == ((0, 4, 8), "blank")


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("yes", True), ("False", False), ("false", False), ("0", False), ("no", False)],
)
def test_switches_mean_what_they_say(name, text, value):
    assert getattr(parse_settings([f"--{name}", text]), name) is value


@pytest.mark.parametrize("text", ["", "maybe", "2", "-1", "None"])
def test_a_switch_refuses_other_words(text):
    with pytest.raises(UserError, match="--show_targets"):
        parse_settings(["--show_targets", text])


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--arm", "gpro_echo"], ["--arm is 'gpro_echo'", *ARMS]),
        (["--preset", "large"], ["--preset is 'large'", "smoke", "pilot", "original", "study"]),
        (["--reward", "dense"], ["--reward is 'dense'", "terminal", "execution", "reachability"]),
        (["--roundz", "3"], ["unknown option --roundz", "--rounds"]),
        (["--round", "3"], ["unknown option --round", "--rounds"]),
        (["extra"], ["unknown word extra", "--help"]),
        (["--seed"], ["--seed", "expected one argument"]),
        (["--updates", "-5"], ["--updates is -5", "at least 1"]),
        (["--eval_tasks", "0"], ["--eval_tasks is 0", "at least 2 and at most 4096"]),
        (["--eval_tasks", "many"], ["--eval_tasks is 'many'", "whole number"]),
        (["--budgets", "0,4,17"], ["--budgets is 0,4,17", "at most 16"]),
        (["--budgets", "-1,4"], ["--budgets is -1,4", "at least 0"]),
        (["--budgets", "4,4"], ["--budgets is 4,4", "once"]),
        (["--budgets", "4;8"], ["--budgets is '4;8'", "commas"]),
        (["--budgets", ""], ["--budgets is ''", "commas"]),
        (["--learning_rate", "1e308"], ["--learning_rate is 1e+308", "above 0 and at most 1"]),
        (["--bc_updates", "99999999999999999999999"], ["--bc_updates", "at most 1000000"]),
        (["--group", "100000000"], ["--group", "at most 1024"]),
        (["--rollout_batch", "3"], ["--rollout_batch is 3", "divisor of --rollout_tasks, 64"]),
        (["--updates", "2", "--rounds", "3"], ["--rounds is 3", "at most --updates, 2"]),
        (["--bc_updates", "2", "--bc_epochs", "3"], ["--bc_epochs is 3", "at most --bc_updates, 2"]),
        (["--learning_rate", "nan"], ["--learning_rate is nan", "above 0"]),
        (["--update_lr", "-1"], ["--update_lr is -1.0", "at least 0"]),
        (["--kl_weight", "-0.1"], ["--kl_weight is -0.1", "at least 0"]),
        (["--seed", "-1"], ["--seed is -1"]),
        (["--out", ""], ["--out is empty"]),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(argv, parts):
    with pytest.raises(UserError) as caught:
        parse_settings(argv)
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert "\n" not in message
    assert message.endswith((".", "?"))


@pytest.mark.parametrize("name", FIELDS)
def test_settings_made_in_python_are_checked_too(name):
    default = getattr(PilotSettings(), name)
    bad = {bool: (), int: (-2,), float: (-1.0,), str: ("",), tuple: ((3, 99),)}.get(type(default), ())
    other_kinds = (1 if isinstance(default, bool) else True, {"a": 1}, ("0",))
    for value in (*bad, *other_kinds):
        with pytest.raises(UserError, match=f"--{name} is "):
            PilotSettings(**{name: value})


def test_help_explains_every_option_with_its_default(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_settings(["--help"])
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for item in dataclasses.fields(PilotSettings):
        assert f"--{item.name} " in text
        assert item.metadata["text"] in text
    assert f"(default {PilotSettings().bc_updates}; smoke: {PRESETS['smoke']['bc_updates']};" in text
    assert "(default 0,4,8,12;" in text


def test_the_command_repeats_the_settings():
    argv = ["--preset", "smoke", "--seed", "3", "--budgets", "0,2", "--show_targets", "yes", "--kl_weight", "0.25"]
    settings = parse_settings([*argv, "--out", "somewhere"])
    words = shlex.split(settings.command())
    assert words[:2] == ["python", "experiments/pilot.py"]
    assert parse_settings(words[2:]) == dataclasses.replace(settings, out=None)


def test_the_original_names_are_accepted():
    assert parse_settings(["--algorithm", "bc"]).arm == "bc"


def test_settings_are_plain_json_values():
    config = PilotSettings().to_dict()
    assert list(config) == FIELDS
    assert config["budgets"] == [0, 4, 8, 12]
    assert config["out"] is None


@pytest.mark.parametrize(
    ("arm", "anchor", "reward", "expected"),
    [
        ("bc", 1.0, "reachability", False),
        ("grpo_echo", 1.0, "terminal", True),
        ("grpo_echo", 0.0, "terminal", False),
        ("grpo_echo", 0.0, "execution", False),
        ("grpo_echo", 0.0, "reachability", True),
        ("process_dpo", 0.0, "terminal", True),
        ("awr", 1.0, "reachability", False),
    ],
)
def test_which_runs_see_oracle_labels(arm, anchor, reward, expected):
    config = PilotSettings(arm=arm, anchor_weight=anchor, reward=reward).to_dict()
    assert sees_oracle_labels(config) is expected


def test_run_main_turns_a_user_error_into_status_2(capsys):
    def main(argv):
        raise UserError(f"the word {argv[0]} is\nwrong.")

    assert run_main(main, ["x"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: the word x is wrong.\n"
    assert captured.out == ""


def test_run_main_leaves_other_errors_alone():
    assert run_main(lambda argv: None, []) == 0
    with pytest.raises(KeyError):
        run_main(lambda argv: {}["missing"], [])


def test_run_main_turns_ctrl_c_into_status_130():
    def main(argv):
        raise KeyboardInterrupt

    assert run_main(main, []) == 130


def test_a_device_that_is_not_here_is_one_sentence():
    code = (
        "import jax; from fuyu_jax.runs.errors import run_main; raise SystemExit(run_main(lambda _: jax.devices(), []))"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "JAX_PLATFORMS is 'cuda', but jax finds no such device here" in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_import_neither_jax_nor_matplotlib():
    code = "import sys, fuyu_jax.runs.settings; print({'jax', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


CONFIGS = [
    "--arm awr --preset smoke --seed 7 --budgets 0,4,8",
    "--recipe original --preset original --mask 1 --learning_rate 3e-4",
    "--arm grpo_terminal --stop_head joint --reward execution --layout_gaps 0.25 --placement nearest",
    "--heads factored --preset study --echo_loss_weight 0",
]


@pytest.mark.parametrize("words", CONFIGS)
def test_a_config_is_enough_to_repeat_a_run(words, tmp_path):
    first = parse_settings([*words.split(), "--out", "elsewhere", "--keep", "-1"])
    (tmp_path / "config.json").write_text(json.dumps(first.to_dict()))
    again = parse_settings(["--config", str(tmp_path / "config.json")])
    assert again == dataclasses.replace(first, out=None, keep=PilotSettings().keep)
    assert again.command() == first.command()


def test_an_option_wins_over_the_config(tmp_path):
    """As if the command line of the config had been written with it: an arm brings its own defaults along."""
    first = parse_settings(["--arm", "grpo_terminal", "--updates", "9", "--seed", "5"])
    (tmp_path / "config.json").write_text(json.dumps(first.to_dict()))
    words = ["--config", str(tmp_path / "config.json")]
    assert parse_settings([*words, "--updates", "8"]) == dataclasses.replace(first, updates=8)
    assert parse_settings([*words, "--arm", "awr"]) == parse_settings(["--arm", "awr", "--updates", "9", "--seed", "5"])
    assert [run.seed for run in parse_runs([*words, "--seeds", "1", "2"])] == [1, 2]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (None, "No such file"),
        ("{", "cannot be read"),
        ("[1]", "holds no settings"),
        ("{}", "holds no settings"),
        ('{"seed": 1, "upates": 3}', "'upates', which is no setting"),
        ('{"seed": "one"}', "--seed is 'one'"),
        ('{"updates": 2.5}', "--updates is '2.5'"),
        ('{"arm": "none"}', "--arm is 'none'"),
    ],
)
def test_a_config_that_is_none_is_one_sentence(text, part, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=part):
        parse_settings(["--config", str(tmp_path / "config.json")])


def test_keeping_no_point_is_refused():
    with pytest.raises(UserError, match="--keep is 0"):
        parse_settings(["--keep", "0"])
