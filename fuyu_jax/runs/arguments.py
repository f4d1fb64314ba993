"""What a pilot command line asks for: new runs, or one that goes on."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.fields import check, from_text, help_text, join_negative_values, metavar, to_text
from fuyu_jax.runs.policies import read_config
from fuyu_jax.runs.settings import IMPLIED, PRESETS, RECIPES, PilotSettings, chosen_values

FIELDS = {item.name: item for item in dataclasses.fields(PilotSettings)}
ON_RESUME = ("checkpoint_dir", "save_every", "keep")  # all else is as the run began


class Asked(NamedTuple):
    """What is to be run.

    Attributes:
      runs: the settings of each run.
      resume: the folder in which the only one goes on; None for new runs.
    """

    runs: list[PilotSettings]
    resume: Path | None = None


def parse_command(argv: Sequence[str]) -> Asked:
    """What a command line asks for.

    Raises:
      UserError: one sentence, for an unknown option or value.
      SystemExit: with status 0, after printing the help, for `--help`.
    """
    given = vars(_parser().parse_args(join_negative_values(argv)))
    if "resume" in given:
        folder = Path(given.pop("resume"))
        return Asked([_resumed(folder, given)], folder)
    return Asked(_new_runs(given))


def parse_runs(argv: Sequence[str]) -> list[PilotSettings]:
    """The settings of each run that a command line asks for; see `parse_command`."""
    return parse_command(argv).runs


def _new_runs(given: dict[str, Any]) -> list[PilotSettings]:
    """One run, or one for each of `--seeds`, each with a folder of its own inside `--out`.

    The settings are those of `chosen_values`, then what `--config` adds to these, then what is given.
    """
    seeds, config = given.pop("seeds", None), given.pop("config", None)
    repeated = options_in(Path(config)) if config is not None else {}
    if seeds is None:
        return [_resolve({**repeated, **given})]
    if "seed" in given:
        raise UserError("both --seed and --seeds are given; leave one of them out.")
    runs = [_resolve({**repeated, **given, "seed": seed}) for seed in seeds]
    if len({run.seed for run in runs}) < len(runs):
        raise UserError(f"--seeds is {' '.join(seeds)}; give each seed once.")
    if "out" not in given:
        return runs
    return [dataclasses.replace(run, out=f"{run.out}/seed_{run.seed}") for run in runs]


def _resumed(run: Path, given: Mapping[str, str]) -> PilotSettings:
    """The settings that a run began with; only where and when it saves may be other ones now."""
    if others := [name for name in given if name not in ON_RESUME]:
        raise UserError(f"--{others[0]} is given beside --resume, but a run goes on as it began; leave it out.")
    settings = PilotSettings.from_dict(read_config(run))
    return dataclasses.replace(settings, **{name: from_text(FIELDS[name], text) for name, text in given.items()})


def options_in(file: Path) -> dict[str, str]:
    """The options that repeat the run of a `config.json`, but for where it read and wrote.

    Raises:
      UserError: where it cannot be read, or holds what is no setting or no value of one.
    """
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"--config: {file} cannot be read ({reason}); give the config.json of a run.") from None
    if not isinstance(config, dict) or not config:
        raise UserError(f"--config: {file} holds no settings; give the config.json of a run.")
    if unknown := [name for name in config if name not in FIELDS]:
        raise UserError(f"--config: {file} has {unknown[0]!r}, which is no setting here; take it out.")
    texts = {name: to_text(tuple(v) if isinstance(v, list) else v) for name, v in config.items() if v is not None}
    return PilotSettings(**{name: from_text(FIELDS[name], text) for name, text in texts.items()}).options()


def _resolve(given: Mapping[str, str]) -> PilotSettings:
    """One run's settings from the texts of the options that are given."""
    overrides = {name: from_text(FIELDS[name], text) for name, text in given.items()}
    named = {name: overrides.get(name, FIELDS[name].default) for name in ("arm", "preset", "recipe")}
    for name, value in named.items():
        check(FIELDS[name], value)
    implied = [values for (name, value), values in IMPLIED.items() if overrides.get(name) == value]
    return PilotSettings(**functools.reduce(operator.or_, [chosen_values(**named), *implied, overrides]))


class _List(argparse.Action):
    """Shows what there is to choose from, and leaves as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, *ignored: Any) -> None:
        """Imported here: a command line needs no model."""
        importlib.import_module("fuyu_jax.runs.costs").print_listing()
        parser.exit()


def _parser() -> Parser:
    """The command line, made from the fields. Values stay text, and options that are not given leave no trace."""
    parser = Parser(
        prog="pilot.py",
        description="Copies the oracle, runs a decision update, measures both against every baseline, writes a report.",
        epilog="Sizes come from --preset, cures from --recipe; an option that is given wins over both.",
        argument_default=argparse.SUPPRESS,
    )
    for item in FIELDS.values():
        names = [f"--{name}" for name in (item.name, *item.metadata["aliases"])]
        text = help_text(item, {**PRESETS, "recipe original": RECIPES["original"]})
        # A switch that is named without a value is switched on.
        value: Any = {"nargs": "?", "const": "1"} if isinstance(item.default, bool) else {}
        parser.add_argument(*names, dest=item.name, metavar=metavar(item), help=text.replace("%", "%%"), **value)
    parser.add_argument("--list", action=_List, nargs=0, help="show arms and presets with their cost here, and leave")
    parser.add_argument("--seeds", nargs="+", metavar="N", help="run once with each of these seeds, in place of --seed")
    parser.add_argument(
        "--config", metavar="FILE", help="repeat the run with this config.json; an option that is given wins over it"
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="go on with the run in this folder, which ends as if it had never stopped"
    )
    return parser
