"""Listings such as "FGT 3; MULI 2; SUM" to programs and back."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np

from vm.isa import OPCODE_OF, OPCODES, READS_ARG
from vm.types import DEFAULT_SETTINGS, NUM_OPCODES, Program, Settings


def assemble(text: str, settings: Settings = DEFAULT_SETTINGS) -> Program:
    """The program of a listing: instructions divided by semicolons or line ends, blank slots after the last.

    An instruction is an opcode's name, in any case, and its argument where it reads one.

    Raises:
      ValueError: names the wrong word and its place.
    """
    ops, args = [], []
    lines = re.split(r"[;\n]", text)
    for place, words in enumerate((line.split() for line in lines if line.strip()), start=1):
        where = f"instruction {place} of {text!r}"
        name = words[0].upper()
        if name not in OPCODE_OF:
            raise ValueError(f"{words[0]!r} in {where} is no opcode; vm.OPCODES lists them.")
        op = OPCODE_OF[name]
        expected = 2 if READS_ARG[op] else 1
        if len(words) < expected:
            raise ValueError(f"{words[0]!r} in {where} lacks its argument; give a number 0 to {settings.args - 1}.")
        if len(words) > expected:
            takes = "1 argument" if expected == 2 else "0 arguments"
            raise ValueError(f"{words[expected]!r} in {where} is too much; {name} takes {takes}.")
        if expected == 2 and not (words[1].isascii() and words[1].isdigit() and int(words[1]) < settings.args):
            raise ValueError(f"{words[1]!r} in {where} is no argument; give a number 0 to {settings.args - 1}.")
        ops.append(op)
        args.append(int(words[1]) if expected == 2 else 0)
    if len(ops) > settings.slots:
        raise ValueError(f"{text!r} has {len(ops)} instructions; this machine holds {settings.slots}.")
    blanks = [0] * (settings.slots - len(ops))
    return Program(jnp.asarray(ops + blanks, jnp.int32), jnp.asarray(args + blanks, jnp.int32))


def disassemble(program: Program, settings: Settings = DEFAULT_SETTINGS) -> str:
    """The listing of one program, without the blank slots after the last instruction.

    An argument that its opcode doesn't read is not written.

    Raises:
      ValueError: where a slot holds no opcode, or an argument outside 0..A-1 that its opcode reads.
    """
    words = slot_words(program, settings)
    while words and words[-1] == "NOP":
        words.pop()
    return "; ".join(words)


def slot_words(program: Program, settings: Settings = DEFAULT_SETTINGS) -> list[str]:
    """The instruction of each of one program's L slots, as `disassemble` writes it.

    Raises:
      ValueError: as `disassemble` does.
    """
    ops, args = (np.asarray(field).tolist() for field in program)
    words = []
    for slot, (op, arg) in enumerate(zip(ops, args, strict=True)):
        if not 0 <= op < NUM_OPCODES:
            raise ValueError(f"slot {slot} holds {op}, which is no opcode; use 0 to {NUM_OPCODES - 1}.")
        if READS_ARG[op] and not 0 <= arg < settings.args:
            raise ValueError(f"slot {slot} holds {OPCODES[op]} {arg}; use an argument 0 to {settings.args - 1}.")
        words.append(f"{OPCODES[op]} {arg}" if READS_ARG[op] else OPCODES[op])
    return words
