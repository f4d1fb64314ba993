"""The instruction set: one row an opcode, and everything else about opcodes is derived from the rows.

A row says what the instruction is called, what it pops and pushes, how it can fail, and how the machine's one shared
datapath computes it. To add an opcode, add its row here and its cases in the tests (and in the plain reference).

Operands are named from the top of the stack: a is the top, b the cell under it, c the third; k is the argument.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from vm.types import NUM_OPCODES, Status


class Kind(enum.Enum):
    """What an operand may be, or what a result is. A NUM or ANY result has the type of the operand it comes from."""

    ANY = "any"
    INT = "INT"
    BOOL = "BOOL"
    LIST = "LIST"
    NUM = "INT or LIST"


class Source(enum.IntEnum):
    """The cell that enters the datapath."""

    TOP = 0
    SECOND = 1
    INPUT = 2  # x; 3 is y
    CHOSEN = 4  # b if c is true, else a


class Scalar(enum.IntEnum):
    """What replaces the first word. `left` is the source's first word, `right` is k where k is read, else a's word."""

    NONE = 0
    EQUAL = 1
    LESS = 2
    GREATER = 3
    EVEN = 4
    MINIMUM = 5
    MAXIMUM = 6
    QUOTIENT = 7
    REMAINDER = 8
    SUM = 9
    LENGTH = 10


class Window(enum.IntEnum):
    """Which places of the list are kept."""

    ALL = 0
    FIRST = 1
    LAST = 2
    TAKE = 3
    DROP = 4


class Filter(enum.IntEnum):
    """Which elements of the list are kept."""

    NONE = 0
    ABOVE = 1
    BELOW = 2
    EVEN = 3


Affine = tuple[int, int]
"""Numbers (c0, c1) that stand for c0 + c1 * k."""


@dataclass(frozen=True)
class Path:
    """How the datapath computes the top cell, stage by stage.

    Each word w of the source becomes `scale * w + offset + factor * q`, where q is floor(w / k) if `divide` is set and
    a's first word otherwise. Then come, where asked for: the absolute value, sorting, one `scalar` in the first word,
    reversal, and keeping of the places in `window` whose element passes `filter`.
    """

    source: Source = Source.TOP
    scale: Affine = (1, 0)
    offset: Affine = (0, 0)
    factor: Affine = (0, 0)
    scale_by_top: bool = False
    divide: bool = False
    absolute: bool = False
    sort: bool = False
    scalar: Scalar = Scalar.NONE
    reverse: bool = False
    window: Window = Window.ALL
    filter: Filter = Filter.NONE


@dataclass(frozen=True)
class Instruction:
    """One row of the instruction table.

    Attributes:
      name: the opcode's name in listings.
      meaning: one line for people.
      operands: kinds of the cells it takes from the stack, the top first.
      results: kinds of the cells it leaves in their place, the top first.
      path: how the new top is computed.
      reads_arg: whether the argument k matters.
      same_type: whether a and b must have one type.
      zero_divisor: whether a zero in a (or in k, where k is read) is DIVISION_BY_ZERO.
      needs_element: whether an empty LIST is EMPTY_LIST.
    """

    name: str
    meaning: str
    operands: tuple[Kind, ...]
    results: tuple[Kind, ...]
    path: Path = Path()
    reads_arg: bool = False
    same_type: bool = False
    zero_divisor: bool = False
    needs_element: bool = False

    @property
    def growth(self) -> int:
        """Change of the stack's depth."""
        return len(self.results) - len(self.operands)

    @property
    def statuses(self) -> tuple[Status, ...]:
        """Every way in which this instruction can fail."""
        typed = self.same_type or any(kind is not Kind.ANY for kind in self.operands)
        can_fail = {
            Status.STACK_UNDERFLOW: bool(self.operands),
            Status.TYPE_ERROR: typed,
            Status.BAD_ARGUMENT: self.reads_arg,
            Status.DIVISION_BY_ZERO: self.zero_divisor,
            Status.EMPTY_LIST: self.needs_element,
            Status.STACK_OVERFLOW: self.growth > 0,
        }
        return tuple(status for status, possible in can_fail.items() if possible)


_ANY, _INT, _BOOL, _LIST, _NUM = Kind.ANY, Kind.INT, Kind.BOOL, Kind.LIST, Kind.NUM


def _binary(name: str, meaning: str, path: Path, kind: Kind = _INT, result: Kind = _INT, **more: bool) -> Instruction:
    """An instruction on two cells of one kind, with b as its source."""
    return Instruction(name, meaning, (kind, kind), (result,), path, **more)


def _second(scalar: Scalar) -> Path:
    return Path(source=Source.SECOND, scalar=scalar)


INSTRUCTIONS: tuple[Instruction, ...] = (
    Instruction("NOP", "nothing", (), ()),
    Instruction("INPUT", "push input k", (), (_ANY,), Path(source=Source.INPUT), reads_arg=True),
    Instruction("CONST", "push k", (), (_INT,), Path(scale=(0, 0), offset=(0, 1), window=Window.FIRST), reads_arg=True),
    Instruction("DUP", "push a copy of a", (_ANY,), (_ANY, _ANY)),
    Instruction("SWAP", "exchange a and b", (_ANY, _ANY), (_ANY, _ANY), Path(source=Source.SECOND)),
    Instruction("POP", "drop a", (_ANY,), (), Path(source=Source.SECOND)),
    _binary("ADD", "b + a", Path(source=Source.SECOND, factor=(1, 0))),
    _binary("SUB", "b - a", Path(source=Source.SECOND, factor=(-1, 0))),
    _binary("MUL", "b * a", Path(source=Source.SECOND, scale_by_top=True)),
    _binary("DIV", "floor(b / a)", _second(Scalar.QUOTIENT), zero_divisor=True),
    _binary("MOD", "b - a * floor(b / a)", _second(Scalar.REMAINDER), zero_divisor=True),
    _binary("MIN", "the smaller of a and b", _second(Scalar.MINIMUM)),
    _binary("MAX", "the larger of a and b", _second(Scalar.MAXIMUM)),
    Instruction("ADDI", "a + k", (_NUM,), (_NUM,), Path(offset=(0, 1)), reads_arg=True),
    Instruction("SUBI", "a - k", (_NUM,), (_NUM,), Path(offset=(0, -1)), reads_arg=True),
    Instruction("MULI", "a * k", (_NUM,), (_NUM,), Path(scale=(0, 1)), reads_arg=True),
    Instruction(
        "DIVI",
        "floor(a / k)",
        (_NUM,),
        (_NUM,),
        Path(scale=(0, 0), factor=(1, 0), divide=True),
        reads_arg=True,
        zero_divisor=True,
    ),
    Instruction(
        "MODI",
        "a - k * floor(a / k)",
        (_NUM,),
        (_NUM,),
        Path(factor=(0, -1), divide=True),
        reads_arg=True,
        zero_divisor=True,
    ),
    Instruction("NEG", "-a", (_NUM,), (_NUM,), Path(scale=(-1, 0))),
    Instruction("ABS", "the absolute value of a", (_NUM,), (_NUM,), Path(absolute=True)),
    _binary("EQ", "b = a", _second(Scalar.EQUAL), result=_BOOL),
    _binary("LT", "b < a", _second(Scalar.LESS), result=_BOOL),
    _binary("GT", "b > a", _second(Scalar.GREATER), result=_BOOL),
    Instruction("EQI", "a = k", (_INT,), (_BOOL,), Path(scalar=Scalar.EQUAL), reads_arg=True),
    Instruction("LTI", "a < k", (_INT,), (_BOOL,), Path(scalar=Scalar.LESS), reads_arg=True),
    Instruction("GTI", "a > k", (_INT,), (_BOOL,), Path(scalar=Scalar.GREATER), reads_arg=True),
    Instruction("EVEN", "a is even", (_INT,), (_BOOL,), Path(scalar=Scalar.EVEN)),
    Instruction("NOT", "1 - a", (_BOOL,), (_BOOL,), Path(scale=(-1, 0), offset=(1, 0))),
    _binary("AND", "a and b", _second(Scalar.MINIMUM), _BOOL, _BOOL),
    _binary("OR", "a or b", _second(Scalar.MAXIMUM), _BOOL, _BOOL),
    Instruction("LEN", "the length", (_LIST,), (_INT,), Path(scalar=Scalar.LENGTH, window=Window.FIRST)),
    Instruction("SUM", "the sum", (_LIST,), (_INT,), Path(scalar=Scalar.SUM, window=Window.FIRST)),
    Instruction("MAXL", "the largest", (_LIST,), (_INT,), Path(sort=True, window=Window.LAST), needs_element=True),
    Instruction("MINL", "the smallest", (_LIST,), (_INT,), Path(sort=True, window=Window.FIRST), needs_element=True),
    Instruction("HEAD", "the first", (_LIST,), (_INT,), Path(window=Window.FIRST), needs_element=True),
    Instruction("LAST", "the last", (_LIST,), (_INT,), Path(window=Window.LAST), needs_element=True),
    Instruction("SORT", "ascending", (_LIST,), (_LIST,), Path(sort=True)),
    Instruction("REV", "reversed", (_LIST,), (_LIST,), Path(reverse=True)),
    Instruction("TAKE", "the first k", (_LIST,), (_LIST,), Path(window=Window.TAKE), reads_arg=True),
    Instruction("DROP", "without the first k", (_LIST,), (_LIST,), Path(window=Window.DROP), reads_arg=True),
    Instruction("FGT", "the elements > k", (_LIST,), (_LIST,), Path(filter=Filter.ABOVE), reads_arg=True),
    Instruction("FLT", "the elements < k", (_LIST,), (_LIST,), Path(filter=Filter.BELOW), reads_arg=True),
    Instruction("FEVEN", "the even elements", (_LIST,), (_LIST,), Path(filter=Filter.EVEN)),
    Instruction("SELECT", "b if c, else a", (_ANY, _ANY, _BOOL), (_ANY,), Path(source=Source.CHOSEN), same_type=True),
)
if len(INSTRUCTIONS) != NUM_OPCODES:
    raise AssertionError(f"the table has {len(INSTRUCTIONS)} rows for {NUM_OPCODES} opcodes.")

OPCODES: tuple[str, ...] = tuple(row.name for row in INSTRUCTIONS)
OPCODE_OF: dict[str, int] = {name: opcode for opcode, name in enumerate(OPCODES)}
READS_ARG: np.ndarray = np.array([row.reads_arg for row in INSTRUCTIONS])  # bool [44]
