"""The command line of `experiments/bench.py`."""

from __future__ import annotations

import argparse
import functools
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from benchmarks import (
    expand_bench,
    load_bench,
    model_bench,
    oracle_bench,
    output,
    rollout_bench,
    tasks_bench,
    train_bench,
    vm_bench,
)
from benchmarks.timing import Report
from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.errors import UserError

Bench = Callable[[Sequence[int] | None, int], Report]

BENCHES: dict[str, Bench] = {
    "vm": vm_bench.run,
    "expand": expand_bench.run,
    "oracle": oracle_bench.run,
    "tasks": tasks_bench.run,
    "rollout": rollout_bench.run,
    "train": train_bench.run,
    "model": model_bench.run,
    "load": load_bench.run,
}
LARGEST_BATCH = 1 << 22
REPEATS = 7


def main(argv: Sequence[str]) -> None:
    """Measure what the command line asks for, print the table and write the files."""
    options = _parse(argv)
    path = None if options.json is None else Path(options.json)
    if path is not None:
        output.prepare_destination(path)
    benches: dict[str, Bench] = {**BENCHES, "load": functools.partial(load_bench.run, model=options.model)}
    about = output.describe_machine()
    total = Report()
    for name in options.benches:
        print(f"bench {name} ...", flush=True)
        jax.clear_caches()  # so that compile times don't depend on the benches before
        report = benches[name](options.batches, options.repeats)
        total.rows += report.rows
        total.ratios |= report.ratios
        total.notes += report.notes
    print(f"\n{output.table(total.rows)}\n")
    if total.ratios:
        print(f"{output.ratios_table(total.ratios)}\n")
    for note in total.notes:
        print(note)
    if path is not None:
        command = shlex.join(["python", "experiments/bench.py", *argv])
        print("written:", *output.write(path, command, about, total))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options.

    Raises:
      UserError: one sentence, for an unknown option or value.
    """
    parser = Parser(
        prog="bench.py",
        description="Measures the machine and what is built on it; compile and run time stand apart.",
    )
    parser.add_argument("benches", nargs="+", metavar="BENCH", help=f"what to measure, of {', '.join(BENCHES)}")
    parser.add_argument(
        "--json", metavar="FILE", help="write the measurements to FILE, and a table (.md) and a chart (.png) beside it"
    )
    parser.add_argument("--batches", metavar="N,N", help="batch sizes, with commas between (each bench has its own)")
    parser.add_argument("--repeats", metavar="N", default=str(REPEATS), help=f"turns of each case (default {REPEATS})")
    parser.add_argument(
        "--model", metavar="NAME", help="model folder or hub id that `load` measures (default: a small random one)"
    )
    options = parser.parse_args(argv)
    if options.model is not None and "load" not in options.benches:
        raise UserError(f"--model is {options.model!r} but only the bench load takes one; add load or leave it out.")
    for name in options.benches:
        if name not in BENCHES:
            raise UserError(f"there is no bench {name!r}; use one of {', '.join(BENCHES)}.")
    options.repeats = _number("--repeats", options.repeats, 1000)
    if options.batches is not None:
        options.batches = [_number("--batches", word, LARGEST_BATCH) for word in options.batches.split(",")]
    return options


def _number(name: str, text: str, highest: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= highest:
        raise UserError(f"{name} is {text!r}; use whole numbers from 1 to {highest}.")
    return number
