"""The judge: a slow interpreter in plain Python (tuples and ints), written apart from the machine it is compared with.

A cell is `(type, words)` inside and `(type, length, words)` with padded words outside. Types: 0 EMPTY, 1 INT, 2 BOOL,
3 LIST. It shares no table and no code with the array machine, so that one mistake can't be in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

EMPTY, INT, BOOL, LIST = 0, 1, 2, 3
OK, STACK_UNDERFLOW, TYPE_ERROR, BAD_ARGUMENT, DIVISION_BY_ZERO, EMPTY_LIST, STACK_OVERFLOW, BAD_OPCODE = range(8)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _names(
    "NOP INPUT CONST DUP SWAP POP ADD SUB MUL DIV MOD MIN MAX ADDI SUBI MULI DIVI MODI NEG ABS EQ LT GT EQI LTI GTI "
    "EVEN NOT AND OR LEN SUM MAXL MINL HEAD LAST SORT REV TAKE DROP FGT FLT FEVEN SELECT"
)
READS_ARGUMENT = frozenset(_names("INPUT CONST ADDI SUBI MULI DIVI MODI EQI LTI GTI TAKE DROP FGT FLT"))

OutsideCell = tuple[int, int, tuple[int, ...]]
Outcome = tuple[OutsideCell, int, int]
Cell = tuple[int, tuple[int, ...]]
Stack = tuple[Cell, ...]
Operation = Callable[..., Any]


class Fault(Exception):
    """Stops a program; carries the status."""

    def __init__(self, status: int) -> None:
        """Remember the status."""
        super().__init__(status)
        self.status = status


def _wrap(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _pop_plan(name: str) -> tuple[str, ...]:
    """Letters of the allowed types of each operand, the top first: I, B, L, N (I or L), * (any)."""
    plans = {
        "": "NOP INPUT CONST",
        "*": "DUP POP",
        "**": "SWAP",
        "II": "ADD SUB MUL DIV MOD MIN MAX EQ LT GT",
        "N": "ADDI SUBI MULI DIVI MODI NEG ABS",
        "I": "EQI LTI GTI EVEN",
        "B": "NOT",
        "BB": "AND OR",
        "L": "LEN SUM MAXL MINL HEAD LAST SORT REV TAKE DROP FGT FLT FEVEN",
        "**B": "SELECT",
    }
    return next(tuple(plan) for plan, names in plans.items() if name in names.split())


_ALLOWED = {"I": (INT,), "B": (BOOL,), "L": (LIST,), "N": (INT, LIST), "*": (INT, BOOL, LIST)}
_OPERANDS = {name: tuple(_ALLOWED[letter] for letter in _pop_plan(name)) for name in NAMES}

_BINARY: dict[str, Operation] = {
    "ADD": lambda b, a: b + a,
    "SUB": lambda b, a: b - a,
    "MUL": lambda b, a: b * a,
    "DIV": lambda b, a: b // a,
    "MOD": lambda b, a: b % a,
    "MIN": min,
    "MAX": max,
    "AND": lambda b, a: b & a,
    "OR": lambda b, a: b | a,
    "EQ": lambda b, a: int(b == a),
    "LT": lambda b, a: int(b < a),
    "GT": lambda b, a: int(b > a),
}
_ELEMENTWISE: dict[str, Operation] = {
    "ADDI": lambda a, k: a + k,
    "SUBI": lambda a, k: a - k,
    "MULI": lambda a, k: a * k,
    "DIVI": lambda a, k: a // k,
    "MODI": lambda a, k: a % k,
    "NEG": lambda a, k: -a,
    "ABS": lambda a, k: abs(a),
}
_TESTS: dict[str, Operation] = {
    "EQI": lambda a, k: a == k,
    "LTI": lambda a, k: a < k,
    "GTI": lambda a, k: a > k,
    "EVEN": lambda a, k: a % 2 == 0,
    "NOT": lambda a, k: a == 0,
}
_REDUCTIONS: dict[str, Operation] = {
    "LEN": len,
    "SUM": sum,
    "MAXL": max,
    "MINL": min,
    "HEAD": lambda words: words[0],
    "LAST": lambda words: words[-1],
}
_LISTS: dict[str, Operation] = {
    "SORT": lambda words, k: sorted(words),
    "REV": lambda words, k: words[::-1],
    "TAKE": lambda words, k: words[:k],
    "DROP": lambda words, k: words[k:],
    "FGT": lambda words, k: [word for word in words if word > k],
    "FLT": lambda words, k: [word for word in words if word < k],
    "FEVEN": lambda words, k: [word for word in words if word % 2 == 0],
}


def step(stack: Stack, op: int, k: int, inputs: Sequence[Cell], depth: int = 4, args: int = 16) -> Stack:
    """The stack (top first) after one instruction. The checks follow the order of the statuses.

    Raises:
      Fault: with the status, where the instruction can't be carried out.
    """
    if not 0 <= op < len(NAMES):
        raise Fault(BAD_OPCODE)
    name = NAMES[op]
    operands = _OPERANDS[name]
    if len(stack) < len(operands):
        raise Fault(STACK_UNDERFLOW)
    for cell, allowed in zip(stack, operands, strict=False):
        if cell[0] not in allowed:
            raise Fault(TYPE_ERROR)
    if name == "SELECT" and stack[0][0] != stack[1][0]:
        raise Fault(TYPE_ERROR)
    if name in READS_ARGUMENT and not 0 <= k < args:
        raise Fault(BAD_ARGUMENT)
    if name == "INPUT" and (k >= len(inputs) or inputs[k][0] == EMPTY):
        raise Fault(BAD_ARGUMENT)
    if (name in ("DIV", "MOD") and stack[0][1][0] == 0) or (name in ("DIVI", "MODI") and k == 0):
        raise Fault(DIVISION_BY_ZERO)
    if name in ("MAXL", "MINL", "HEAD", "LAST") and not stack[0][1]:
        raise Fault(EMPTY_LIST)
    if name in ("INPUT", "CONST", "DUP") and len(stack) >= depth:
        raise Fault(STACK_OVERFLOW)

    if name == "NOP":
        return stack
    if name == "INPUT":
        return (inputs[k], *stack)
    if name == "CONST":
        return ((INT, (k,)), *stack)
    if name == "DUP":
        return (stack[0], *stack)
    if name == "SWAP":
        return (stack[1], stack[0], *stack[2:])
    if name == "POP":
        return stack[1:]
    if name == "SELECT":
        return (stack[1] if stack[2][1][0] else stack[0], *stack[3:])
    kind, words = stack[0]
    if name in _BINARY:
        answer = _BINARY[name](stack[1][1][0], words[0])
        return ((BOOL if name in ("AND", "OR", "EQ", "LT", "GT") else INT, (_wrap(answer),)), *stack[2:])
    if name in _ELEMENTWISE:
        return ((kind, tuple(_wrap(_ELEMENTWISE[name](word, k)) for word in words)), *stack[1:])
    if name in _TESTS:
        return ((BOOL, (int(_TESTS[name](words[0], k)),)), *stack[1:])
    if name in _REDUCTIONS:
        return ((INT, (_wrap(_REDUCTIONS[name](words)),)), *stack[1:])
    return ((LIST, tuple(_LISTS[name](words, k))), *stack[1:])


def cell(value: Any, width: int = 8) -> OutsideCell:
    """`(type, length, words)` from None (EMPTY), an int, a bool, a list of ints, or a Value-like object."""
    if isinstance(value, tuple) and not hasattr(value, "words"):
        return value
    if hasattr(value, "words"):
        return int(value.type), int(value.length), tuple(int(word) for word in value.words)
    if value is None:
        kind, words = EMPTY, []
    elif isinstance(value, list):
        kind, words = LIST, value
    else:
        kind, words = (BOOL if isinstance(value, bool) else INT), [int(value)]
    return kind, len(words), (*words, *[0] * (width - len(words)))


def _pairs(program: Any) -> list[tuple[int, int]]:
    pairs = zip(program.op, program.arg, strict=True) if hasattr(program, "op") else program
    return [(int(op), int(arg)) for op, arg in pairs]


class Sizes(NamedTuple):
    """The machine's sizes that matter here; `vm.Settings` will do as well."""

    stack: int = 4
    width: int = 8
    args: int = 16


def trace(program: Any, inputs: Sequence[Any], sizes: Any = Sizes()) -> tuple[Outcome, list[OutsideCell]]:  # noqa: B008
    """Run a program and report the top of the stack after each slot.

    Args:
      program: pairs (opcode, argument), or an object with sequences `op` and `arg`. Its length is L.
      inputs: x, or x and y: each None, an int, a bool, a list of ints, `(type, length, words)` or a Value.
      sizes: an object with `stack`, `width` and `args`.

    Returns:
      `((output, status, pc), tops)`; a cell is `(type, length, words)` with W words.
    """
    states, status, pc = _execute(program, inputs, sizes)
    tops = [_outside(state[:1], sizes.width) for state in states[1:]]
    tops += [_outside(states[-1][:1], sizes.width)] * (len(_pairs(program)) - len(tops))
    return (_outside(states[-1][:1] if status == OK else (), sizes.width), status, pc), tops


def run(program: Any, inputs: Sequence[Any], sizes: Any = Sizes()) -> Outcome:  # noqa: B008
    """`(output, status, pc)` of one program on one example; see `trace` for the arguments."""
    states, status, pc = _execute(program, inputs, sizes)
    return _outside(states[-1][:1] if status == OK else (), sizes.width), status, pc


def _execute(program: Any, inputs: Sequence[Any], sizes: Any) -> tuple[list[Stack], int, int]:
    """The stacks before the first slot and after each slot that ran, the status and the pc."""
    cells: list[Cell] = []
    for value in inputs:
        kind, length, words = cell(value, sizes.width)
        cells.append((kind, tuple(words[:length])))
    states: list[Stack] = [(cells[0],) if cells[0][0] != EMPTY else ()]
    pairs = _pairs(program)
    for index, (op, k) in enumerate(pairs):
        try:
            states.append(step(states[-1], op, k, cells, sizes.stack, sizes.args))
        except Fault as fault:
            return states, fault.status, index
    return states, OK, len(pairs)


def _outside(top: Stack, width: int) -> OutsideCell:
    kind, words = top[0] if top else (EMPTY, ())
    return kind, len(words), (*words, *[0] * (width - len(words)))
