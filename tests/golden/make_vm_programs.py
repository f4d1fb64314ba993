"""Remake vm_programs.txt, the log of programs and their outcomes by the plain interpreter.

Run `python tests/golden/make_vm_programs.py` from the root of the repository, and look at the difference.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from vm_random import random_inputs  # noqa: E402

from benchmarks.program_mix import random_instruction  # noqa: E402
from vm import reference  # noqa: E402
from vm.types import NUM_OPCODES, Settings, Status  # noqa: E402

LOG = Path(__file__).with_name("vm_programs.txt")
HEADER = "# listing | x | y | status | pc | output; made by: python tests/golden/make_vm_programs.py"
INT_MIN, INT_MAX = -(2**31), 2**31 - 1

MUSEUM: list[tuple[str, Any, Any]] = [  # programs that trip careless machines
    ("", [1, 2], None),
    ("POP", [1, 2], None),
    ("POP; NOP; CONST 0; CONST 0; EQ", [1, 2], None),
    ("DUP; DUP; DUP; POP; POP; POP; POP; POP", 1, None),
    ("DUP; DUP; DUP; DUP; POP; POP; POP; POP", 1, None),
    ("DUP; DUP; DUP; INPUT 1; POP", 1, None),
    ("INPUT 1; SWAP; SUB", 3, 10),
    ("INPUT 1; SWAP; DIV", 2, -7),
    ("INPUT 1; DIV", INT_MIN, -1),
    ("INPUT 1; MOD", INT_MIN, -1),
    ("NEG; ABS; NEG", [INT_MIN, INT_MAX], None),
    ("CONST 0; DIV; CONST 0; MOD; NOP; SUM", 7, None),
    ("DIVI 0", [], None),
    ("FGT 15; MAXL", [1, 2, 3], None),
    ("FGT 15; SUM", [1, 2, 3], None),
    ("TAKE 0; REV; SORT; LEN", [1, 2, 3], None),
    ("TAKE 2; DROP 1; ADDI 5; REV; SUM", [1, 2, 3], None),
    ("REV; TAKE 1; REV; HEAD", [4, 5, 6], None),
    ("SORT; REV; DROP 7; HEAD", [INT_MAX, INT_MIN, 0, 1, -1, 2, -2, 3], None),
    ("MULI 15; MULI 15; MULI 15; MULI 15; MULI 15; MULI 15; MULI 15; SUM", [1, 3, 12345, INT_MAX], None),
    ("DUP; MUL; DUP; MUL; DUP; MUL; DUP; MUL", 3, None),
    ("CONST 1; CONST 0; SELECT; NOT", True, None),
    ("DUP; GTI 0; SWAP; DUP; NEG; SELECT", -5, None),
    ("DUP; GTI 0; SWAP; DUP; NEG; SWAP; SELECT", -5, None),
    ("INPUT 1; DUP; FEVEN; SELECT; LEN", False, [1, 2, 3]),
    ("INPUT 1; INPUT 1; HEAD; SELECT", True, [1, 2, 3]),
    ("DUP; LEN; SWAP; SUM; SWAP; DIV", [1, 2, 4], None),
    ("DUP; LEN; SWAP; SUM; SWAP; DIV", [], None),
    ("EVEN; NOT; NOT; DUP; AND; DUP; OR", INT_MIN, None),
]


def random_listing(source: random.Random, opcode: int, inputs: list[Any], sizes: Settings) -> str:
    """A program that contains the opcode after instructions that run."""
    cells = [(kind, words[:length]) for kind, length, words in (reference.cell(x, sizes.width) for x in inputs)]
    stack: reference.Stack = (cells[0],)
    chosen: list[tuple[int, int]] = []
    for slot in range(source.randint(2, sizes.slots)):
        for _ in range(30):
            op, k = random_instruction(source, sizes)
            if slot and chosen[-1][0] != opcode and source.random() < 0.3:
                op = opcode
            try:
                stack = reference.step(stack, op, k, cells, sizes.stack, sizes.args)
                break
            except reference.Fault:
                pass
        chosen.append((op, k))
    if opcode not in [op for op, _ in chosen]:
        chosen[-1] = (opcode, source.randrange(sizes.args))
    names = [(reference.NAMES[op], k) for op, k in chosen]
    return "; ".join(f"{name} {k}" if name in reference.READS_ARGUMENT else name for name, k in names)


def log_line(listing: str, x: Any, y: Any, sizes: Settings) -> str:
    """One line of the log: a program, its inputs and the outcome by the plain interpreter."""
    words = [instruction.split() for instruction in listing.split(";") if instruction.strip()]
    pairs = [(reference.NAMES.index(word[0]), int(word[1]) if len(word) > 1 else 0) for word in words]
    pairs += [(0, 0)] * (sizes.slots - len(pairs))
    (kind, length, numbers), status, pc = reference.run(pairs, [x, y], sizes)
    output = {0: None, 1: numbers[0], 2: bool(numbers[0]), 3: list(numbers[:length])}[kind]
    return f"{listing} | {x} | {y} | {Status(status).name} | {pc} | {output}"


def random_line(source: random.Random, opcode: int, sizes: Settings) -> str:
    """The log line of one random program on random inputs."""
    x, y = random_inputs(source, sizes)
    x = 0 if x is None else x
    return log_line(random_listing(source, opcode, [x, y], sizes), x, y, sizes)


def main() -> None:
    """Write the log: the museum, then for each opcode seven random programs that run and one that may not."""
    sizes, source = Settings(), random.Random(0)
    lines = [log_line(listing, x, y, sizes) for listing, x, y in MUSEUM]
    for opcode in range(NUM_OPCODES):
        for must_run in [True] * 7 + [False]:
            line = random_line(source, opcode, sizes)
            while must_run and "| OK |" not in line:
                line = random_line(source, opcode, sizes)
            lines.append(line)
    LOG.write_text("\n".join([HEADER, *lines]) + "\n")


if __name__ == "__main__":
    main()
