"""Hand-written cases of every opcode: (listing, x, y, outcome), where the listing's last instruction is the one tested.

The outcome is the output in Python form (a bool is a BOOL, None is EMPTY) or the `Status` of the last instruction.
Numbers were worked out by hand from the meaning of the instructions.
"""

from __future__ import annotations

from typing import Any

from vm.isa import OPCODES
from vm.types import Status

MAX, MIN = 2**31 - 1, -(2**31)
UNDERFLOW, TYPE, ARGUMENT = Status.STACK_UNDERFLOW, Status.TYPE_ERROR, Status.BAD_ARGUMENT
ZERO, EMPTY_LIST, OVERFLOW = Status.DIVISION_BY_ZERO, Status.EMPTY_LIST, Status.STACK_OVERFLOW

Case = tuple[str, Any, Any, Any]

CASES: dict[str, list[Case]] = {
    "NOP": [("NOP", [3, 1], None, [3, 1]), ("POP; NOP", 5, None, None), ("NOP 99", 5, None, 5)],
    "INPUT": [
        ("INPUT 0", [1, 2], 7, [1, 2]),
        ("INPUT 1", [1, 2], 7, 7),
        ("INPUT 1", 3, True, True),
        ("INPUT 1; INPUT 0; INPUT 1", 1, [], []),
        ("INPUT 1", 3, None, ARGUMENT),
        ("INPUT 2", 3, 4, ARGUMENT),
        ("INPUT -1", 3, 4, ARGUMENT),
        ("INPUT 16", 3, 4, ARGUMENT),
        ("DUP; DUP; DUP; INPUT 0", 3, None, OVERFLOW),
        ("DUP; DUP; DUP; INPUT 1", 3, None, ARGUMENT),
    ],
    "CONST": [
        ("CONST 0", 9, None, 0),
        ("CONST 15", [1, 2], None, 15),
        ("POP; CONST 7", [1, 2], None, 7),
        ("CONST 16", 9, None, ARGUMENT),
        ("CONST -1", 9, None, ARGUMENT),
        ("DUP; DUP; DUP; CONST 1", 9, None, OVERFLOW),
        ("DUP; DUP; DUP; CONST 16", 9, None, ARGUMENT),
    ],
    "DUP": [
        ("DUP", [4, 5], None, [4, 5]),
        ("DUP; POP; DUP", True, None, True),
        ("POP; DUP", 1, None, UNDERFLOW),
        ("DUP; DUP; DUP; DUP", [], None, OVERFLOW),
    ],
    "SWAP": [
        ("CONST 3; SWAP", [1, 2], None, [1, 2]),
        ("CONST 3; SWAP; SWAP", [1, 2], None, 3),
        ("SWAP", 3, None, UNDERFLOW),
        ("POP; SWAP", 3, None, UNDERFLOW),
    ],
    "POP": [("CONST 3; POP", [1], None, [1]), ("POP", [1], None, None), ("POP; POP", [1], None, UNDERFLOW)],
    "ADD": [
        ("INPUT 1; ADD", 3, 4, 7),
        ("INPUT 1; ADD", MAX, 1, MIN),
        ("INPUT 1; ADD", MIN, -1, MAX),
        ("ADD", 3, None, UNDERFLOW),
        ("INPUT 1; ADD", [3], 4, TYPE),
        ("INPUT 1; ADD", 3, True, TYPE),
    ],
    "SUB": [
        ("INPUT 1; SUB", 3, 10, -7),
        ("INPUT 1; SUB", MIN, 1, MAX),
        ("INPUT 1; SUB", 0, MIN, MIN),
        ("POP; SUB", 3, None, UNDERFLOW),
        ("INPUT 1; SUB", 3, [4], TYPE),
    ],
    "MUL": [
        ("INPUT 1; MUL", -3, 7, -21),
        ("INPUT 1; MUL", 65536, 65536, 0),
        ("INPUT 1; MUL", 46341, 46341, -2147479015),
        ("INPUT 1; MUL", 123456789, 987654321, -67153019),
        ("MUL", 3, None, UNDERFLOW),
        ("INPUT 1; MUL", True, 2, TYPE),
    ],
    "DIV": [
        ("INPUT 1; DIV", -7, 2, -4),
        ("INPUT 1; DIV", 7, -2, -4),
        ("INPUT 1; DIV", -7, -2, 3),
        ("INPUT 1; DIV", -6, 5, -2),
        ("INPUT 1; DIV", 6, -5, -2),
        ("INPUT 1; DIV", -6, 3, -2),
        ("INPUT 1; DIV", MIN, -1, MIN),
        ("INPUT 1; DIV", MAX, MIN, -1),
        ("INPUT 1; DIV", 7, 0, ZERO),
        ("INPUT 1; DIV", 0, 0, ZERO),
        ("DIV", 0, None, UNDERFLOW),
        ("CONST 0; DIV", [1], None, TYPE),
    ],
    "MOD": [
        ("INPUT 1; MOD", -7, 2, 1),
        ("INPUT 1; MOD", 7, -2, -1),
        ("INPUT 1; MOD", -7, -2, -1),
        ("INPUT 1; MOD", -6, 5, 4),
        ("INPUT 1; MOD", 6, -5, -4),
        ("INPUT 1; MOD", -6, 3, 0),
        ("INPUT 1; MOD", MIN, -1, 0),
        ("INPUT 1; MOD", MAX, MIN, -1),
        ("INPUT 1; MOD", -7, 0, ZERO),
        ("MOD", 0, None, UNDERFLOW),
        ("CONST 0; MOD", True, None, TYPE),
    ],
    "MIN": [
        ("INPUT 1; MIN", 3, -4, -4),
        ("INPUT 1; MIN", MIN, MAX, MIN),
        ("MIN", 3, None, UNDERFLOW),
        ("INPUT 1; MIN", True, True, TYPE),
    ],
    "MAX": [
        ("INPUT 1; MAX", 3, -4, 3),
        ("INPUT 1; MAX", MIN, MAX, MAX),
        ("MAX", 3, None, UNDERFLOW),
        ("DUP; MAX", [3], None, TYPE),
    ],
    "ADDI": [
        ("ADDI 5", -3, None, 2),
        ("ADDI 15", [1, MAX, -20], None, [16, MIN + 14, -5]),
        ("ADDI 3", [], None, []),
        ("POP; ADDI 16", 1, None, UNDERFLOW),
        ("ADDI 16", True, None, TYPE),
        ("ADDI 16", 1, None, ARGUMENT),
        ("ADDI -1", 1, None, ARGUMENT),
    ],
    "SUBI": [
        ("SUBI 5", -3, None, -8),
        ("SUBI 1", [MIN, 0], None, [MAX, -1]),
        ("POP; SUBI 1", 1, None, UNDERFLOW),
        ("SUBI 1", False, None, TYPE),
        (f"SUBI {MIN}", 1, None, ARGUMENT),
    ],
    "MULI": [
        ("MULI 3", -7, None, -21),
        ("MULI 15", [2**30, 1], None, [-(2**30), 15]),
        ("MULI 0", [4, 5], None, [0, 0]),
        ("POP; MULI 1", 1, None, UNDERFLOW),
        ("MULI 1", False, None, TYPE),
        (f"MULI {MAX}", 1, None, ARGUMENT),
    ],
    "DIVI": [
        ("DIVI 2", -7, None, -4),
        ("DIVI 3", [7, -7, 0, MIN, MAX], None, [2, -3, 0, -715827883, 715827882]),
        ("DIVI 1", [MAX, MIN, -1], None, [MAX, MIN, -1]),
        ("DIVI 0", 7, None, ZERO),
        ("DIVI 0", [], None, ZERO),
        ("POP; DIVI 0", 7, None, UNDERFLOW),
        ("DIVI 0", True, None, TYPE),
        ("DIVI 16", 7, None, ARGUMENT),
    ],
    "MODI": [
        ("MODI 2", -7, None, 1),
        ("MODI 10", [17, -17, MIN, MAX], None, [7, 3, 2, 7]),
        ("MODI 1", [MAX, MIN], None, [0, 0]),
        ("MODI 0", 7, None, ZERO),
        ("MODI 0", [], None, ZERO),
        ("POP; MODI 3", 7, None, UNDERFLOW),
        ("MODI 3", True, None, TYPE),
        ("MODI -3", 7, None, ARGUMENT),
    ],
    "NEG": [
        ("NEG", 5, None, -5),
        ("NEG", [1, -2, MIN], None, [-1, 2, MIN]),
        ("POP; NEG", 5, None, UNDERFLOW),
        ("NEG", True, None, TYPE),
    ],
    "ABS": [
        ("ABS", -5, None, 5),
        ("ABS", [1, -2, 0, MIN, MIN + 1], None, [1, 2, 0, MIN, MAX]),
        ("POP; ABS", 5, None, UNDERFLOW),
        ("ABS", True, None, TYPE),
    ],
    "EQ": [
        ("INPUT 1; EQ", 4, 4, True),
        ("INPUT 1; EQ", 4, 5, False),
        ("EQ", 4, None, UNDERFLOW),
        ("INPUT 1; EQ", True, True, TYPE),
    ],
    "LT": [
        ("INPUT 1; LT", 4, 5, True),
        ("INPUT 1; LT", 5, 5, False),
        ("INPUT 1; LT", MIN, MAX, True),
        ("LT", 4, None, UNDERFLOW),
        ("INPUT 1; LT", [4], 5, TYPE),
    ],
    "GT": [
        ("INPUT 1; GT", 5, 4, True),
        ("INPUT 1; GT", 5, 5, False),
        ("INPUT 1; GT", MIN, MAX, False),
        ("GT", 4, None, UNDERFLOW),
        ("INPUT 1; GT", 4, [5], TYPE),
    ],
    "EQI": [
        ("EQI 4", 4, None, True),
        ("EQI 4", -4, None, False),
        ("POP; EQI 4", 4, None, UNDERFLOW),
        ("EQI 4", [4], None, TYPE),
        ("EQI 16", 16, None, ARGUMENT),
    ],
    "LTI": [
        ("LTI 4", MIN, None, True),
        ("LTI 4", 4, None, False),
        ("POP; LTI 4", 4, None, UNDERFLOW),
        ("LTI 4", True, None, TYPE),
        ("LTI -1", 4, None, ARGUMENT),
    ],
    "GTI": [
        ("GTI 4", 5, None, True),
        ("GTI 4", 4, None, False),
        ("POP; GTI 4", 4, None, UNDERFLOW),
        ("GTI 4", [5], None, TYPE),
        ("GTI 16", 4, None, ARGUMENT),
    ],
    "EVEN": [
        ("EVEN", -4, None, True),
        ("EVEN", -3, None, False),
        ("EVEN", MIN, None, True),
        ("POP; EVEN", 4, None, UNDERFLOW),
        ("EVEN", True, None, TYPE),
    ],
    "NOT": [
        ("NOT", True, None, False),
        ("NOT", False, None, True),
        ("POP; NOT", True, None, UNDERFLOW),
        ("NOT", 1, None, TYPE),
    ],
    "AND": [
        ("INPUT 1; AND", True, True, True),
        ("INPUT 1; AND", True, False, False),
        ("INPUT 1; AND", False, True, False),
        ("AND", True, None, UNDERFLOW),
        ("INPUT 1; AND", True, 1, TYPE),
    ],
    "OR": [
        ("INPUT 1; OR", False, False, False),
        ("INPUT 1; OR", True, False, True),
        ("INPUT 1; OR", False, True, True),
        ("OR", True, None, UNDERFLOW),
        ("INPUT 1; OR", 1, True, TYPE),
    ],
    "LEN": [
        ("LEN", [5, 5, 5], None, 3),
        ("LEN", [], None, 0),
        ("LEN", [0] * 8, None, 8),
        ("POP; LEN", [], None, UNDERFLOW),
        ("LEN", 3, None, TYPE),
    ],
    "SUM": [
        ("SUM", [1, -2, 5], None, 4),
        ("SUM", [], None, 0),
        ("SUM", [MAX, 1], None, MIN),
        ("SUM", [MIN, MIN], None, 0),
        ("POP; SUM", [], None, UNDERFLOW),
        ("SUM", 3, None, TYPE),
    ],
    "MAXL": [
        ("MAXL", [3, 9, -2], None, 9),
        ("MAXL", [-3, -9], None, -3),
        ("MAXL", [MIN], None, MIN),
        ("MAXL", [], None, EMPTY_LIST),
        ("POP; MAXL", [], None, UNDERFLOW),
        ("MAXL", 3, None, TYPE),
    ],
    "MINL": [
        ("MINL", [3, 9, -2], None, -2),
        ("MINL", [3, 9], None, 3),
        ("MINL", [MAX], None, MAX),
        ("MINL", [], None, EMPTY_LIST),
        ("POP; MINL", [], None, UNDERFLOW),
        ("MINL", True, None, TYPE),
    ],
    "HEAD": [
        ("HEAD", [7, 8], None, 7),
        ("HEAD", [], None, EMPTY_LIST),
        ("POP; HEAD", [], None, UNDERFLOW),
        ("HEAD", 3, None, TYPE),
    ],
    "LAST": [
        ("LAST", [7, 8], None, 8),
        ("LAST", list(range(8)), None, 7),
        ("LAST", [], None, EMPTY_LIST),
        ("POP; LAST", [], None, UNDERFLOW),
        ("LAST", 3, None, TYPE),
    ],
    "SORT": [
        ("SORT", [3, MIN, 3, MAX, 0], None, [MIN, 0, 3, 3, MAX]),
        ("SORT", [8, 7, 6, 5, 4, 3, 2, 1], None, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("SORT", [], None, []),
        ("POP; SORT", [], None, UNDERFLOW),
        ("SORT", 3, None, TYPE),
    ],
    "REV": [
        ("REV", [3, 1, 2], None, [2, 1, 3]),
        ("REV", [1, 2, 3, 4, 5, 6, 7, 8], None, [8, 7, 6, 5, 4, 3, 2, 1]),
        ("REV", [], None, []),
        ("POP; REV", [], None, UNDERFLOW),
        ("REV", 3, None, TYPE),
    ],
    "TAKE": [
        ("TAKE 2", [3, 1, 2], None, [3, 1]),
        ("TAKE 0", [3, 1, 2], None, []),
        ("TAKE 15", [3, 1, 2], None, [3, 1, 2]),
        ("POP; TAKE 16", [], None, UNDERFLOW),
        ("TAKE 1", 3, None, TYPE),
        ("TAKE 16", [3], None, ARGUMENT),
    ],
    "DROP": [
        ("DROP 2", [3, 1, 2], None, [2]),
        ("DROP 0", [3, 1, 2], None, [3, 1, 2]),
        ("DROP 15", [3, 1, 2], None, []),
        ("POP; DROP 1", [], None, UNDERFLOW),
        ("DROP 1", 3, None, TYPE),
        ("DROP -1", [3], None, ARGUMENT),
    ],
    "FGT": [
        ("FGT 3", [3, 9, -2, 4, MIN, MAX], None, [9, 4, MAX]),
        ("FGT 15", [3], None, []),
        ("POP; FGT 1", [], None, UNDERFLOW),
        ("FGT 1", 3, None, TYPE),
        ("FGT 16", [], None, ARGUMENT),
    ],
    "FLT": [
        ("FLT 3", [3, 9, -2, 2, MIN, MAX], None, [-2, 2, MIN]),
        ("FLT 0", [0, MIN], None, [MIN]),
        ("POP; FLT 1", [], None, UNDERFLOW),
        ("FLT 1", True, None, TYPE),
        ("FLT 16", [], None, ARGUMENT),
    ],
    "FEVEN": [
        ("FEVEN", [3, -4, 0, 7, MIN, MAX], None, [-4, 0, MIN]),
        ("FEVEN", [1, 3], None, []),
        ("POP; FEVEN", [], None, UNDERFLOW),
        ("FEVEN", 4, None, TYPE),
    ],
    "SELECT": [
        ("INPUT 1; DUP; MULI 2; SELECT", True, [1, 2], [1, 2]),
        ("INPUT 1; DUP; MULI 2; SELECT", False, [1, 2], [2, 4]),
        ("CONST 1; CONST 2; SELECT", True, None, 1),
        ("DUP; NOT; INPUT 0; SELECT", False, None, False),
        ("CONST 1; SELECT", True, None, UNDERFLOW),
        ("CONST 1; CONST 2; SELECT", 1, None, TYPE),
        ("CONST 1; INPUT 1; SELECT", True, [1], TYPE),
        ("INPUT 1; CONST 1; SELECT", True, [1], TYPE),
    ],
}

PRECEDENCE: list[Case] = [  # several faults at once; the smallest status wins, but a bad opcode excludes all others
    ("POP; DIVI 16", 1, None, UNDERFLOW),
    ("DIV", [], None, UNDERFLOW),
    ("POP; MAXL", 1, None, UNDERFLOW),
    ("CONST 0; DIV", [1], None, TYPE),
    ("DIVI 16", False, None, TYPE),
    ("DIVI 0", False, None, TYPE),
    ("TAKE 16", 5, None, TYPE),
    ("DUP; DUP; DUP; INPUT 16", 1, None, ARGUMENT),
    ("DUP; DUP; DUP; INPUT 1", 1, None, ARGUMENT),
    ("DUP; DUP; DUP; CONST -1", 1, None, ARGUMENT),
    (f"{len(OPCODES)} 16", 1, None, Status.BAD_OPCODE),
    ("POP; -1 0", 1, None, Status.BAD_OPCODE),
    ("DUP; DUP; DUP; 1000 -1", 1, None, Status.BAD_OPCODE),
    (f"{MAX} 0", [], None, Status.BAD_OPCODE),
    (f"{MIN} {MIN}", [], None, Status.BAD_OPCODE),
]


def parse(listing: str) -> list[tuple[int, int]]:
    """The (opcode, argument) pairs of a listing; unlike the assembler, it takes any numbers, also as opcodes."""
    pairs = []
    for instruction in listing.split(";"):
        name, *rest = instruction.split()
        pairs.append((OPCODES.index(name) if name in OPCODES else int(name), int(rest[0]) if rest else 0))
    return pairs
