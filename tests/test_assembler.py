"""Listings: round trips, and errors that name the wrong word and its place."""

from __future__ import annotations

import random
import re

import jax.numpy as jnp
import numpy as np
import pytest

import vm
from vm.isa import READS_ARG
from vm.types import NUM_OPCODES as END
from vm.types import Program, Settings


def test_by_hand() -> None:
    program = vm.assemble("FGT 3; MULI 2; SUM")
    np.testing.assert_array_equal(program.op, [40, 15, 31, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(program.arg, [3, 2, 0, 0, 0, 0, 0, 0])
    assert program.op.dtype == program.arg.dtype == jnp.int32
    assert vm.disassemble(program) == "FGT 3; MULI 2; SUM"


@pytest.mark.parametrize(
    "text", ["fgt 3;muli 2;sum", "FGT 3\nMULI 2\n\nSUM\n", " FGT  3 ;; MULI\t2; SUM; ", "FGT 03; MULI 2; SUM"]
)
def test_spelling_variants(text: str) -> None:
    assert vm.disassemble(vm.assemble(text)) == "FGT 3; MULI 2; SUM"


def test_blank() -> None:
    assert vm.disassemble(vm.blank_program()) == ""
    np.testing.assert_array_equal(vm.assemble("").op, np.zeros(8))
    assert vm.disassemble(vm.assemble("NOP; SUM; NOP")) == "NOP; SUM"


def test_round_trip_of_random_programs() -> None:
    source = random.Random(0)
    for settings in (Settings(), Settings(slots=3, args=4)):
        for _ in range(100):
            op = [source.randrange(END) for _ in range(settings.slots)]
            arg = [source.randrange(settings.args) if READS_ARG[o] else 0 for o in op]
            back = vm.assemble(vm.disassemble(Program(jnp.array(op), jnp.array(arg)), settings), settings)
            assert (back.op.tolist(), back.arg.tolist()) == (op, arg)


def test_an_argument_that_is_not_read_is_not_written() -> None:
    assert vm.disassemble(Program(jnp.array([31, 0]), jnp.array([9, 9]))) == "SUM"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SUM; FGR 3", "'FGR' in instruction 2 of 'SUM; FGR 3' is no opcode"),
        ("SUM;; 7", "'7' in instruction 2 "),
        ("FGT", "'FGT' in instruction 1 of 'FGT' lacks its argument; give a number 0 to 15"),
        ("FGT 16", "'16' in instruction 1 of 'FGT 16' is no argument; give a number 0 to 15"),
        ("FGT -1", "'-1' in instruction 1 "),
        ("FGT x", "'x' in instruction 1 "),
        ("FGT ²", "'²' in instruction 1 "),
        ("FGT 3000000000", "'3000000000' in instruction 1 "),
        ("NEG; SUM 3", "'3' in instruction 2 of 'NEG; SUM 3' is too much; SUM takes 0 arguments"),
        ("FGT 3 4", "'4' in instruction 1 of 'FGT 3 4' is too much; FGT takes 1 argument"),
        ("; ".join(["NEG"] * 9), "has 9 instructions; this machine holds 8"),
    ],
)
def test_assemble_refuses(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        vm.assemble(text)
    assert "\n" not in str(error.value)


def test_smaller_machines_refuse_what_they_do_not_hold() -> None:
    with pytest.raises(ValueError, match="give a number 0 to 3"):
        vm.assemble("FGT 4", Settings(args=4))
    with pytest.raises(ValueError, match="holds FGT 4; use an argument 0 to 3"):
        vm.disassemble(vm.assemble("FGT 4"), Settings(args=4))


@pytest.mark.parametrize(
    ("op", "arg", "words"),
    [
        (END, 0, f"slot 1 holds {END}, which is no opcode; use 0 to {END - 1}"),
        (-1, 0, "slot 1 holds -1"),
        (40, 16, "slot 1 holds FGT 16; use an argument 0 to 15"),
        (40, -1, "slot 1 holds FGT -1"),
    ],
)
def test_disassemble_refuses(op: int, arg: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        vm.disassemble(Program(jnp.array([31, op]), jnp.array([0, arg])))
