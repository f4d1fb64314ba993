"""The machine and the plain interpreter still give the outcomes of the committed log of programs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from vm_random import stack_inputs

import vm
from vm import reference
from vm.types import Settings, Status

LOG = Path(__file__).parent / "golden" / "vm_programs.txt"
REMAKE = "if the change is meant, remake the log: python tests/golden/make_vm_programs.py"


class Entry(NamedTuple):
    line: int
    listing: str
    inputs: list[Any]
    outcome: tuple[str, int, Any]


def read_log() -> list[Entry]:
    entries = []
    for number, line in enumerate(LOG.read_text().splitlines(), start=1):
        if not line.startswith("#"):
            listing, x, y, status, pc, output = (field.strip() for field in line.split("|"))
            inputs = [ast.literal_eval(x), ast.literal_eval(y)]
            entries.append(Entry(number, listing, inputs, (status, int(pc), ast.literal_eval(output))))
    return entries


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return read_log()


def test_machine(entries: list[Entry]) -> None:
    programs = [vm.assemble(entry.listing) for entry in entries]
    stacked = jax.tree.map(lambda *fields: jnp.stack(fields), *programs)
    result = jax.jit(jax.vmap(vm.run))(stacked, stack_inputs([entry.inputs for entry in entries], Settings()))
    result = jax.tree.map(np.asarray, result)
    for row, entry in enumerate(entries):
        output = vm.to_python(jax.tree.map(lambda field, row=row: field[row], result.output))
        got = (Status(int(result.status[row])).name, int(result.pc[row]), output)
        assert repr(got) == repr(entry.outcome), f"line {entry.line} of {LOG.name}, {entry.listing}; {REMAKE}"


def test_reference(entries: list[Entry]) -> None:
    for entry in entries:
        status, pc, output = entry.outcome
        got = reference.run(vm.assemble(entry.listing), entry.inputs)
        right = (reference.cell(output), Status[status], pc)
        assert got == right, f"line {entry.line} of {LOG.name}, {entry.listing}; {REMAKE}"


def test_listings_survive_the_assembler(entries: list[Entry]) -> None:
    for entry in entries:
        instructions = entry.listing.split("; ")
        while instructions and instructions[-1] == "NOP":
            instructions.pop()
        assert vm.disassemble(vm.assemble(entry.listing)) == "; ".join(instructions)


def test_log_is_large_and_meets_everything(entries: list[Entry]) -> None:
    names = {word.split()[0] for entry in entries for word in entry.listing.split(";") if word.strip()}
    assert len(entries) >= 300
    assert names == set(vm.OPCODES)
    assert {entry.outcome[0] for entry in entries} == {status.name for status in Status} - {"BAD_OPCODE"}
