"""The parser of every script: what is wrong on a command line becomes one `UserError`."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fuyu_jax.runs.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser that takes no shortened options, and raises `UserError` in place of printing its usage and leaving."""

    def __init__(self, prog: str, description: str | None, **options: Any) -> None:
        """As `argparse.ArgumentParser`, with wider help."""
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=110),
            **options,
        )

    def error(self, message: str) -> NoReturn:
        """Refuses a command line in one sentence."""
        raise UserError(f"{message}; --help lists the options.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options of a command line; a misspelt one is told before one that is missing.

        Raises:
          UserError: one sentence, for an unknown option or word, or a missing one.
        """
        words = list(sys.argv[1:] if args is None else args)
        options = words[: words.index("--")] if "--" in words else words
        for word in options:
            if word.startswith("--") and " " not in word and word.split("=")[0] not in self._option_string_actions:
                self._refuse(word)
        parsed, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self._refuse(unknown[0])
        return parsed

    def _refuse(self, word: str) -> NoReturn:
        word = word.split("=")[0]
        near = difflib.get_close_matches(word, self._option_string_actions, n=1)
        hint = f"did you mean {near[0]}?" if near else "--help lists the options."
        raise UserError(f"unknown {'option' if word.startswith('-') else 'word'} {word}; {hint}")


def whole_number(option: str, text: str | None, low: int, high: int, default: int = 0) -> int:
    """The number that an option's text stands for, `default` where the option is not given.

    Raises:
      UserError: where it is no whole number from `low` to `high`.
    """
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
        raise UserError(f"--{option} is {text!r}; use a whole number from {low} to {high}.")
    return int(text)


def rising_numbers(option: str, texts: Sequence[str] | None, high: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of an option, each once and in rising order; `default` where the option is not given.

    Raises:
      UserError: where they are anything else, or not from 0 to `high`.
    """
    if texts is None:
        return default
    numbers = tuple(whole_number(option, text, 0, high) for text in texts)
    if list(numbers) != sorted(set(numbers)):
        raise UserError(f"--{option} is {' '.join(texts)}; give each number once, in rising order.")
    return numbers
