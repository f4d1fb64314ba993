"""`python -m vm`: what it prints, beside `vm.trace`, and how it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vm
from vm import reference
from vm.__main__ import describe, main, read_value, run_slots, show_stack
from vm.table import instruction_table

ROOT = Path(__file__).resolve().parents[1]

RUN = """\
slot  instruction  stack, top first
      start        [1, 5, 4]
   0  FGT 3        [5, 4]
   1  MULI 2       [10, 8]
   2  SUM          18

status  OK
output  18
"""
FAULT = """\
slot  instruction  stack, top first
      start        -4
   0  INPUT 1      true  -4
   1  DUP          true  true  -4
   2  NOP          true  true  -4
   3  ADD          stopped by TYPE_ERROR

status  TYPE_ERROR
output  (empty)
"""
EMPTIED = """\
slot  instruction  stack, top first
      start        []
   0  POP          (empty)

status  OK
output  (empty)
"""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["FGT 3; MULI 2; SUM", "--x", "[1,5,4]"], RUN),
        (["INPUT 1; DUP; NOP; ADD; NEG", "--x", "-4", "--y", "true"], FAULT),
        (["pop", "--x", "[]"], EMPTIED),
    ],
)
def test_a_run_step_by_step(arguments, text, capsys):
    assert main(arguments) == 0
    assert capsys.readouterr().out == text


def test_as_a_command():
    command = [sys.executable, "-m", "vm"]
    done = subprocess.run([*command, "FGT 3; MULI 2; SUM", "--x", "[1,5,4]"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, RUN, "")
    done = subprocess.run([*command, "FGT"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


NUMBER = "is no input; give a number, true, false or a list such as [1,5,4]."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "there is no program"),
        (["SUM"], "there is no input; give one with --x"),
        (["SUM", "--y", "3"], "there is no input; give one with --x"),
        (["SUM", "--z", "3"], "unrecognized arguments: --z 3; --help lists the options"),
        (["SUM", "ABS", "--x", "3"], "unrecognized arguments: ABS"),
        (["SUM", "--x"], "argument --x: expected one argument"),
        (["--tab"], "unrecognized arguments: --tab"),
        (["--table", "SUM"], "--table prints the instruction table and runs nothing; give it alone"),
        (["SUM; PUSH 3", "--x", "[1]"], "'PUSH' in instruction 2 of 'SUM; PUSH 3' is no opcode"),
        (["FGT 16", "--x", "[1]"], "'16' in instruction 1 of 'FGT 16' is no argument; give a number 0 to 15"),
        ([";".join(["NOP"] * 9), "--x", "1"], "has 9 instructions; this machine holds 8"),
        (["NOP", "--x", "[1,2,3,4,5,6,7,8,9]"], "--x: a list of 9 numbers is too long; this machine holds 8"),
        (["NOP", "--x", "2147483648"], "--x: 2147483648 does not fit a 32-bit word"),
        (["NOP", "--x", "1", "--y", "[-2147483649]"], "--y: -2147483649 does not fit a 32-bit word"),
        *((["NOP", "--x", text], f"--x {text!r} {NUMBER}") for text in ("", "x", "1.5", "[1.0]", "null", "{}", '"1"')),
        *((["NOP", "--x", text], f"--x {text!r} {NUMBER}") for text in ("[true]", "[[1]]", "NaN", "[1", "9" * 5000)),
        (["NOP", "--x", "[" * 10**5], NUMBER),
    ],
)
def test_bad_input_is_told_in_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert sentence in said.err


def test_help_names_every_option_and_its_examples_run(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0 and all(option in text for option in ("--x", "--y", "--table"))
    examples = re.findall(r'^  python -m vm "(.*?)" (.*)$', text, re.MULTILINE)
    assert len(examples) == 3
    for listing, rest in examples:
        assert main([listing, *(word.strip('"') for word in rest.split())]) == 0
        assert "status  OK" in capsys.readouterr().out


def test_the_table_lists_every_opcode(capsys):
    assert main(["--table"]) == 0
    printed = capsys.readouterr().out
    assert printed == instruction_table() + "\n"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines()[2:]]
    assert [row[0] for row in rows] == [str(opcode) for opcode in range(44)]
    for name, row in zip(reference.NAMES, rows, strict=True):
        assert row[1] == (f"`{name} k`" if name in reference.READS_ARGUMENT else f"`{name}`")
        faults = set() if row[5] == "nothing else" else set(row[5].split(", "))
        assert ("BAD_ARGUMENT" in faults) == (name in reference.READS_ARGUMENT)
        assert ("STACK_UNDERFLOW" in faults) == (row[2] != "nothing")


@pytest.mark.parametrize(
    ("listing", "x", "y"),
    [
        ("FGT 3; MULI 2; SUM", [1, 5, 4], None),
        ("INPUT 1; ADD; EVEN; NOT", 7, -3),
        ("DUP; DUP; DUP; DUP", True, None),
        ("GTI 3; INPUT 1; SWAP; NOP; POP", 5, []),
        ("", [], None),
    ],
)
def test_stacks_and_ending_are_the_machines(listing, x, y):
    program = vm.assemble(listing)
    inputs = jax.tree.map(lambda *leaf: jnp.asarray(np.stack(leaf)), vm.from_python(x), vm.from_python(y))
    right = vm.trace(program, inputs)
    texts = [(name, json.dumps(value)) for name, value in (("x", x), ("y", y)) if value is not None]
    pairs = list(zip(program.op.tolist(), program.arg.tolist(), strict=True))
    run = run_slots(pairs, [read_value(name, text) for name, text in texts])
    tops = [vm.to_python(jax.tree.map(lambda leaf, slot=slot: leaf[slot], right.tops)) for slot in range(8)]
    lines = [show_stack(stack[:1]) for stack in run.stacks[1:]]
    assert lines == ["(empty)" if top is None else json.dumps(top) for top in tops[: len(lines)]]
    assert (run.status, len(lines)) == (right.result.status, right.result.pc)
    output = vm.to_python(right.result.output)
    assert describe(pairs, run)[-1] == f"output  {'(empty)' if output is None else json.dumps(output)}"
