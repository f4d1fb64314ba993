"""The settings of a pilot run: one dataclass, from which the command line, its help and its checks are made."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import shlex
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.errors import UserError as UserError

ARMS = ("bc", "grpo_echo")
QUANTS = ("none", "int8", "nf4")
DTYPES = ("float32", "bfloat16")
REWARDS = ("terminal", "execution", "reachability")
STARTS = ("mixed", "blank", "corrupted")
MAX_BUDGET = 16
MAX_SEED = 2**30 - 1  # twice it still seeds a task stream


def _setting(
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A field: its default, help text, valid values (`choices`, or from `low` to `high` and above `above`), aliases."""
    metadata = {"text": text, "choices": choices, "low": low, "high": high, "above": above, "aliases": aliases}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class PilotSettings:
    """Everything that decides what a pilot run does. The defaults are the `pilot` preset.

    Raises:
      UserError: on construction, where a value is outside what the field allows.
    """

    arm: str = _setting("grpo_echo", "what is run after (or instead of) copying", choices=ARMS, aliases=("algorithm",))
    preset: str = _setting(
        "pilot", "sizes to start from; any other option overrides it", choices=("smoke", "pilot", "original", "study")
    )
    model: str = _setting("tiny", "`tiny` (embedded), a folder in Hugging Face layout, or a hub id")
    quant: str = _setting(
        "none", "how a model folder's matrices are kept: as they are, or in 8 or 4 bits", choices=QUANTS
    )
    dtype: str = _setting("float32", "what the transformer computes in", choices=DTYPES)
    lora_rank: int = _setting(
        16, "rank of the adapters on a model folder's frozen weights (0: train the weights)", low=0, high=1_024
    )
    lora_alpha: float = _setting(32.0, "adapters count alpha / rank", above=0.0, high=100_000.0)
    lora_targets: str = _setting(
        "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
        "projections that get an adapter, with commas between",
    )
    seed: int = _setting(
        0, "decides initialisation, the train stream and sampling; evaluation tasks never change", low=0, high=MAX_SEED
    )
    out: str | None = _setting(None, "folder of the run, new or empty (default: the next number under runs/)")

    bc_updates: int = _setting(300, "updates of behaviour cloning", low=1, high=1_000_000)
    bc_epochs: int = _setting(2, "parts of behaviour cloning; the policy is measured after each", low=1, high=100)
    batch_tasks: int = _setting(64, "demonstrations in one update of behaviour cloning", low=1, high=100_000)
    states_per_task: int = _setting(4, "states of each demonstration in one update", low=1, high=17)
    updates: int = _setting(100, "updates of the decision update, over all rounds", low=1, high=1_000_000)
    rounds: int = _setting(1, "parts of the decision update; the policy is measured after each", low=1, high=1_000)
    rollout_tasks: int = _setting(64, "train tasks that are rolled out at a time", low=1, high=100_000)
    group: int = _setting(4, "sampled rollouts of each of these tasks", low=2, high=1_024)
    rollout_batch: int = _setting(
        32, "of these tasks, how many are in one update; divides rollout_tasks", low=1, high=100_000
    )
    states_per_rollout: int = _setting(4, "decisions of each rollout that are trained on", low=1, high=16)
    reuse: int = _setting(1, "updates that each rollout is used for", low=1, high=1_000)
    accumulate: int = _setting(
        1,
        "parts that an update's gradient is made of, for less memory; divides the tasks of an update",
        low=1,
        high=4_096,
    )
    full_pass: bool = _setting(
        False, "whether each state is read in a pass of its own, prompt included: slower, the same numbers"
    )
    demos: int = _setting(
        0,
        "tasks that copying may see, with one oracle trajectory each (0: a stream without end)",
        low=0,
        high=1_000_000,
    )

    learning_rate: float = _setting(4e-3, "peak learning rate of behaviour cloning", above=0.0, high=1.0)
    update_lr: float = _setting(1e-3, "peak learning rate of the decision update", above=0.0, high=1.0)
    kl_weight: float = _setting(0.1, "weight of the KL divergence to the copied policy", low=0.0, high=1000.0)
    anchor_weight: float = _setting(
        1.0, "weight of the oracle's labels on the policy's own states", low=0.0, high=1000.0
    )
    echo_loss_weight: float = _setting(0.1, "weight of predicting the machine's next outputs", low=0.0, high=1000.0)
    bc_replay: float = _setting(0.5, "weight of copied demonstrations during the decision update", low=0.0, high=1000.0)
    reward: str = _setting("reachability", "what a rollout is rewarded for", choices=REWARDS)

    start: str = _setting("mixed", "programs that tasks start from", choices=STARTS)
    public: int = _setting(4, "examples whose inputs the controller sees", low=1, high=16)
    hidden: int = _setting(16, "further examples that score only", low=1, high=64)
    show_targets: bool = _setting(False, "whether the controller sees the public targets")
    no_repeat: bool = _setting(True, "whether an edit is taken at most once in the same program of an episode")

    eval_tasks: int = _setting(256, "tasks of each evaluation split", low=2, high=4096)
    budgets: tuple[int, ...] = _setting(
        (0, 4, 8, 12), "edit budgets K that are measured, with commas between", low=0, high=MAX_BUDGET
    )
    oracle_width: int = _setting(16, "beam width of the oracle's search", low=1, high=4_096)

    def __post_init__(self) -> None:
        """Refuses values that the fields do not allow."""
        for item in dataclasses.fields(self):
            _check(item, getattr(self, item.name))
        if self.rollout_tasks % self.rollout_batch:
            raise UserError(
                f"--rollout_batch is {self.rollout_batch}; use a divisor of --rollout_tasks, {self.rollout_tasks}."
            )
        for name in ("batch_tasks", "rollout_batch"):
            if getattr(self, name) % self.accumulate:
                raise UserError(f"--accumulate is {self.accumulate}; use a divisor of --{name}, {getattr(self, name)}.")
        if self.model == _defaults()["model"] and self.quant != "none":
            raise UserError(
                f"--quant is {self.quant!r} but the embedded model has no pretrained weights and is trained whole; "
                "give a model folder with --model, or --quant none."
            )
        if self.quant != "none" and self.lora_rank == 0:
            raise UserError("--lora_rank is 0 but weights in 8 or 4 bits cannot be trained; use a rank of at least 1.")
        if self.bc_epochs > self.bc_updates:
            raise UserError(f"--bc_epochs is {self.bc_epochs}; use at most --bc_updates, {self.bc_updates}.")
        if self.rounds > self.updates:
            raise UserError(f"--rounds is {self.rounds}; use at most --updates, {self.updates}.")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values, in the order of the fields."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> PilotSettings:
        """The settings in a `config.json`; keys that are no setting are left out."""
        names = [item.name for item in dataclasses.fields(cls) if item.name in config]
        values: dict[str, Any] = {
            name: tuple(config[name]) if isinstance(config[name], list) else config[name] for name in names
        }
        return cls(**values)

    def command(self) -> str:
        """The shortest command that repeats this run in a folder of its own."""
        base = {**_defaults(), **PRESETS[self.preset]}
        words = ["python", "experiments/pilot.py", "--arm", self.arm, "--preset", self.preset, "--seed", str(self.seed)]
        for key, value in vars(self).items():
            if key not in ("arm", "preset", "seed", "out") and value != base[key]:
                words += [f"--{key}", _to_text(value)]
        return shlex.join(words)


PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"bc_updates": 8, "updates": 4, "eval_tasks": 16, "oracle_width": 1},
    "pilot": {},
    "original": {"demos": 32, "eval_tasks": 16, "budgets": (0, 4, 8), "start": "blank"},
    "study": {"bc_updates": 1000, "updates": 800, "rounds": 2},
}


def parse_settings(argv: Sequence[str]) -> PilotSettings:
    """The settings that a command line asks for: the preset's values, overridden by the options that are given.

    Raises:
      UserError: one sentence, for an unknown option or value.
      SystemExit: with status 0, after printing the help, for `--help`.
    """
    given = vars(_parser().parse_args(_join_negative_values(argv)))
    fields = {item.name: item for item in dataclasses.fields(PilotSettings)}
    overrides = {name: _from_text(fields[name], text) for name, text in given.items()}
    preset = overrides.get("preset", "pilot")
    _check(fields["preset"], preset)
    return PilotSettings(**{**PRESETS[preset], **overrides})


def sees_oracle_labels(config: Mapping[str, Any]) -> bool:
    """Whether a run with this `config.json` learned from the oracle in more than the copied demonstrations."""
    return config["arm"] != "bc" and (config["anchor_weight"] > 0 or config["reward"] == "reachability")


def _parser() -> Parser:
    """The command line, made from the fields. Values stay text, and options that are not given leave no trace."""
    parser = Parser(
        prog="pilot.py",
        description="Copies the oracle, runs a decision update, measures both against every baseline, writes a report.",
        epilog="Sizes come from --preset; an option that is given wins over it.",
        argument_default=argparse.SUPPRESS,
    )
    for item in dataclasses.fields(PilotSettings):
        names = [f"--{name}" for name in (item.name, *item.metadata["aliases"])]
        parser.add_argument(*names, dest=item.name, metavar=_metavar(item), help=_help(item).replace("%", "%%"))
    return parser


def _join_negative_values(argv: Sequence[str]) -> list[str]:
    """`--budgets -1,4` as `--budgets=-1,4`, so that argparse does not take a negative value for an option."""
    joined: list[str] = []
    for word in argv:
        if re.match(r"-[\d.]", word) and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _type(item: dataclasses.Field[Any]) -> Any:
    return typing.get_type_hints(PilotSettings)[item.name]


def _metavar(item: dataclasses.Field[Any]) -> str:
    if item.metadata["choices"]:
        return "|".join(item.metadata["choices"])
    return {bool: "0|1", int: "N", float: "X", tuple[int, ...]: "N,N"}.get(_type(item), "TEXT")


def _help(item: dataclasses.Field[Any]) -> str:
    presets = [f"{name}: {_to_text(values[item.name])}" for name, values in PRESETS.items() if item.name in values]
    default = [] if item.default is None else [f"default {_to_text(item.default)}", *presets]
    return item.metadata["text"] + (f" ({'; '.join(default)})" if default else "")


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _from_text(item: dataclasses.Field[Any], text: str) -> Any:
    """The value that an option's text stands for."""
    kind = _type(item)
    if kind is bool:
        truth = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text.lower() not in truth:
            raise UserError(f"--{item.name} is {text!r}; use 1 or 0 (or true, false, yes, no).")
        return truth[text.lower()]
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
        if kind == tuple[int, ...]:
            return tuple(int(part) for part in text.split(","))
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}.get(kind, "whole numbers with commas, such as 0,4,8")
        raise UserError(f"--{item.name} is {text!r}; use {wanted}.") from None
    return text


def _check(item: dataclasses.Field[Any], value: Any) -> None:
    """Refuses a value that the field does not allow."""
    limits = item.metadata
    if limits["choices"] and value not in limits["choices"]:
        raise UserError(f"--{item.name} is {value!r}; use one of {', '.join(limits['choices'])}.")
    if isinstance(value, str) and not value.strip():
        raise UserError(f"--{item.name} is empty; give a value or leave the option out.")
    values = value if isinstance(value, tuple) else (value,)
    if isinstance(value, tuple) and list(value) != sorted(set(value)):
        raise UserError(f"--{item.name} is {_to_text(value)}; give each number once, in rising order.")
    for number in values:
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        if not (math.isfinite(number) and limits["low"] <= number <= limits["high"] and number > limits["above"]):
            raise UserError(f"--{item.name} is {_to_text(value)}; use {_range(limits)}.")


def _range(limits: Mapping[str, Any]) -> str:
    """The numbers that a field allows, in words."""
    low = f"a number above {limits['above']:g}" if limits["above"] > -math.inf else f"at least {limits['low']:g}"
    return low + ("" if limits["high"] == math.inf else f" and at most {limits['high']:g}")


def _defaults() -> dict[str, Any]:
    return {item.name: item.default for item in dataclasses.fields(PilotSettings)}
