"""Fields of a settings dataclass that carry their own help, limits and command line."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fuyu_jax.runs.errors import UserError

Field = dataclasses.Field[Any]


def setting(
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
    return dataclasses.field(default=default, metadata=metadata)


def join_negative_values(argv: Sequence[str]) -> list[str]:
    """`--budgets -1,4` as `--budgets=-1,4`, so that argparse does not take a negative value for an option."""
    joined: list[str] = []
    for word in argv:
        if re.match(r"-[\d.]", word) and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def metavar(item: Field) -> str:
    """What stands for the value in the help."""
    if item.metadata["choices"]:
        return "|".join(item.metadata["choices"])
    return {bool: "0|1", int: "N", float: "X", tuple: "N,N"}.get(type(item.default), "TEXT")


def help_text(item: Field, variants: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of an option's help with its default, and its value in each of the named variants that have another."""
    others = [f"{name}: {to_text(values[item.name])}" for name, values in variants.items() if item.name in values]
    default = [] if item.default is None else [f"default {to_text(item.default)}", *others]
    return item.metadata["text"] + (f" ({'; '.join(default)})" if default else "")


def to_text(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def from_text(item: Field, text: str) -> Any:
    """The value that an option's text stands for; the default's type says which kind it is.

    Raises:
      UserError: where the text stands for no such value.
    """
    default: Any = item.default
    kind = type(default)
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
        if kind is tuple:
            return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--{item.name} is {text!r}; use {_WANTED[kind]}.") from None
    return text


_WANTED: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "whole numbers with commas, such as 0,4,8",
    type(None): "a text or nothing",
}


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of a default; the parts of a tuple are whole numbers."""
    if isinstance(value, bool) or isinstance(default, bool):
        return type(value) is type(default)
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(_is_like(part, 0) for part in value)
    kinds = {float: int | float, type(None): str | None}
    return isinstance(value, kinds.get(type(default), type(default)))


def check(item: Field, value: Any) -> None:
    """Refuses a value that the field does not allow.

    Raises:
      UserError: one sentence that names the option.
    """
    limits = item.metadata
    if not _is_like(value, item.default):
        raise UserError(f"--{item.name} is {value!r}; use {_WANTED[type(item.default)]}.")
    if limits["choices"] and value not in limits["choices"]:
        raise UserError(f"--{item.name} is {value!r}; use one of {', '.join(limits['choices'])}.")
    if isinstance(value, str) and not value.strip():
        raise UserError(f"--{item.name} is empty; give a value or leave the option out.")
    values = value if isinstance(value, tuple) else (value,)
    if isinstance(value, tuple) and list(value) != sorted(set(value)):
        raise UserError(f"--{item.name} is {to_text(value)}; give each number once, in rising order.")
    for number in values:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if not (math.isfinite(number) and limits["low"] <= number <= limits["high"] and number > limits["above"]):
            raise UserError(f"--{item.name} is {to_text(value)}; use {_range(limits)}.")


def _range(limits: Mapping[str, Any]) -> str:
    """The numbers that a field allows, in words."""
    low = f"a number above {limits['above']:g}" if limits["above"] > -math.inf else f"at least {limits['low']:g}"
    if limits["high"] == math.inf:
        return low
    whole = float(limits["high"]).is_integer()
    return f"{low} and at most {limits['high']:.0f}" if whole else f"{low} and at most {limits['high']:g}"
