"""Runs a program step by step on the command line: `python -m vm "FGT 3; MULI 2; SUM" --x "[1,5,4]"`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from vm import reference
from vm.assembler import assemble
from vm.isa import OPCODES, READS_ARG
from vm.table import instruction_table
from vm.types import DEFAULT_SETTINGS, Status, Type, from_python

BAD_INPUT = 2
BLANK = (0, 0)

EPILOG = """\
examples:
  python -m vm "FGT 3; MULI 2; SUM" --x "[1,5,4]"
  python -m vm "INPUT 1; ADD" --x 4 --y 3
  python -m vm "NOT" --x true
"""


class BadInputError(Exception):
    """What is wrong with the command line, in one sentence."""


class Parser(argparse.ArgumentParser):
    """A parser that raises `BadInputError` in place of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        """Refuses a command line in one sentence."""
        raise BadInputError(f"{message}; --help lists the options.")


class Run(NamedTuple):
    """A program's run: the stacks before the first slot and after each slot that ran, top first, and how it ended."""

    stacks: list[reference.Stack]
    status: Status


def read_value(name: str, text: str) -> reference.Cell:
    """The cell of an input as written on the command line: a number, true, false or a list of numbers.

    Raises:
      BadInputError: where the text is nothing of that kind or the machine can't hold it.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    words = value if isinstance(value, list) else [value]
    numbers = all(isinstance(word, int) and not isinstance(word, bool) for word in words)
    if not numbers and not isinstance(value, bool):
        raise BadInputError(f"--{name} {text!r} is no input; give a number, true, false or a list such as [1,5,4].")
    try:
        kind, length, padded = from_python(value)
    except ValueError as error:
        raise BadInputError(f"--{name}: {error}") from error
    return int(kind), tuple(int(word) for word in padded[: int(length)])


def run_slots(pairs: Sequence[tuple[int, int]], inputs: Sequence[reference.Cell]) -> Run:
    """Runs (opcode, argument) pairs from x alone on the stack."""
    stacks: list[reference.Stack] = [(inputs[0],)]
    for op, arg in pairs:
        try:
            stacks.append(reference.step(stacks[-1], op, arg, inputs, DEFAULT_SETTINGS.stack, DEFAULT_SETTINGS.args))
        except reference.Fault as fault:
            return Run(stacks, Status(fault.status))
    return Run(stacks, Status.OK)


def show_cell(cell: reference.Cell) -> str:
    """A cell in the notation of the command line's inputs."""
    kind, words = cell
    if kind == Type.LIST:
        return str(list(words))
    return ("false", "true")[words[0]] if kind == Type.BOOL else str(words[0])


def show_stack(stack: reference.Stack) -> str:
    """The cells of a stack, the top first."""
    return "  ".join(show_cell(cell) for cell in stack) or "(empty)"


def describe(pairs: Sequence[tuple[int, int]], run: Run) -> list[str]:
    """The lines that tell a run: the stack after each slot up to the last instruction, the status and the output."""
    shown = max((slot + 1 for slot, pair in enumerate(pairs) if pair != BLANK), default=0)
    lines = ["slot  instruction  stack, top first", f"{'':4}  {'start':11}  {show_stack(run.stacks[0])}"]
    for slot, (op, arg) in enumerate(pairs[:shown]):
        instruction = f"{OPCODES[op]} {arg}" if READS_ARG[op] else OPCODES[op]
        ran = slot + 1 < len(run.stacks)
        outcome = show_stack(run.stacks[slot + 1]) if ran else f"stopped by {run.status.name}"
        lines.append(f"{slot:4}  {instruction:11}  {outcome}")
        if not ran:
            break
    output = run.stacks[-1][:1] if run.status == Status.OK else ()
    return [*lines, "", f"status  {run.status.name}", f"output  {show_stack(output)}"]


def parser() -> Parser:
    """The command line."""
    result = Parser(
        prog="python -m vm",
        allow_abbrev=False,
        description="Run a program of the typed bytecode machine and print the stack after each slot.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("listing", nargs="?", help="the program: instructions divided by semicolons")
    result.add_argument("--x", metavar="VALUE", help="the first input, on the stack at the start")
    result.add_argument("--y", metavar="VALUE", help="the second input, which INPUT 1 pushes")
    result.add_argument("--table", action="store_true", help="print the instruction table as Markdown instead")
    return result


def report(arguments: argparse.Namespace) -> str:
    """What a command line asks to print.

    Raises:
      BadInputError: where something in it can't be used.
    """
    if arguments.table:
        if (arguments.listing, arguments.x, arguments.y) != (None, None, None):
            raise BadInputError("--table prints the instruction table and runs nothing; give it alone.")
        return instruction_table()
    if arguments.listing is None:
        raise BadInputError('there is no program; give one, as in python -m vm "FGT 3; SUM" --x "[1,5,4]".')
    if arguments.x is None:
        raise BadInputError("there is no input; give one with --x, for example --x 3 or --x [1,5,4].")
    try:
        program = assemble(arguments.listing)
    except ValueError as error:
        raise BadInputError(str(error)) from error
    inputs = [read_value(name, text) for name, text in (("x", arguments.x), ("y", arguments.y)) if text is not None]
    pairs = list(zip(*(np.asarray(field).tolist() for field in program), strict=True))
    return "\n".join(describe(pairs, run_slots(pairs, inputs)))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; 0, or 2 where its input is bad."""
    try:
        print(report(parser().parse_args(argv)))
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
