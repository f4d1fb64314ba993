"""The machine as one would first write it in jax: every opcode's result is computed, then a gather picks one.

It shares the table of operands with the real machine, nothing else, and is there to be compared with.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vm.isa import INSTRUCTIONS, READS_ARG, Kind
from vm.types import DEFAULT_SETTINGS, NUM_OPCODES, Program, Result, Settings, Status, Type, Value

Array = jax.Array

_TYPES = {
    Kind.ANY: (Type.INT, Type.BOOL, Type.LIST),
    Kind.NUM: (Type.INT, Type.LIST),
    Kind.INT: (Type.INT,),
    Kind.BOOL: (Type.BOOL,),
    Kind.LIST: (Type.LIST,),
}
_OPERANDS = 3
ARITY = np.array([len(row.operands) for row in INSTRUCTIONS], np.int32)  # [44]
GROWTH = np.array([row.growth for row in INSTRUCTIONS], np.int32)  # [44]
ALLOWED = np.ones((NUM_OPCODES, _OPERANDS, 4), bool)  # [opcode, operand, type]
for _op, _row in enumerate(INSTRUCTIONS):
    for _place, _kind in enumerate(_row.operands):
        ALLOWED[_op, _place] = [kind in _TYPES[_kind] for kind in range(4)]


def _members(*names: str) -> np.ndarray:
    """Which opcodes these are: bool `[44]`."""
    return np.array([row.name in names for row in INSTRUCTIONS])


_IS_INPUT, _IS_SELECT, _IS_SWAP = _members("INPUT"), _members("SELECT"), _members("SWAP")
_DIVIDES_BY_TOP, _DIVIDES_BY_ARG = _members("DIV", "MOD"), _members("DIVI", "MODI")
_NEEDS_ELEMENT = _members("MAXL", "MINL", "HEAD", "LAST")


class _State(NamedTuple):
    stack: Value  # [D], [D], [D, W]; cells at and under the depth are EMPTY
    depth: Array
    status: Array
    pc: Array


def run(program: Program, inputs: Value, settings: Settings = DEFAULT_SETTINGS) -> Result:
    """Run one program `[L]` on one example, a `Value` with fields `[2]`, `[2]`, `[2, W]`. Equal to `vm.run`."""
    zeros = Value(*(jnp.zeros((settings.stack, *field.shape[1:]), jnp.int32) for field in inputs))
    stack = jax.tree.map(lambda cells, given: cells.at[0].set(given[0]), zeros, inputs)
    start = _State(stack, (inputs.type[0] != Type.EMPTY).astype(jnp.int32), jnp.int32(0), jnp.int32(0))

    def step(state: _State, instruction: Program) -> tuple[_State, None]:
        return _step(state, instruction.op, instruction.arg, inputs, settings), None

    end, _ = lax.scan(step, start, program)
    output = jax.tree.map(lambda cells: jnp.where(end.status == Status.OK, cells[0], 0), end.stack)
    return Result(output, end.status, end.pc)


def _step(state: _State, op: Array, k: Array, inputs: Value, settings: Settings) -> _State:
    known = (op >= 0) & (op < NUM_OPCODES)
    row = jnp.clip(op, 0, NUM_OPCODES - 1)
    fault = jnp.where(known, _fault(state, row, k, inputs, settings), Status.BAD_OPCODE)
    status = jnp.where(state.status == Status.OK, fault, state.status)
    safe = jnp.clip(k, 0, settings.args - 1)
    results = _results(state.stack, safe, inputs)  # [44], [44], [44, W]
    top = jax.tree.map(lambda field: field[row], results)
    growth = jnp.asarray(GROWTH)[row]

    def settle(cells: Array, top: Array) -> Array:
        """The cells `[D, ...]` with the new top, and under it the old ones, moved by the growth."""
        below = jnp.arange(1, settings.stack, dtype=jnp.int32) - growth  # [D - 1]
        padded = jnp.concatenate([cells, jnp.zeros((_OPERANDS, *cells.shape[1:]), jnp.int32)])
        rest = padded[below]
        if settings.stack > 1:
            rest = rest.at[0].set(jnp.where(jnp.asarray(_IS_SWAP)[row], cells[0], rest[0]))
        return jnp.concatenate([top[None], rest])

    stack = jax.tree.map(settle, state.stack, top)
    after = _State(stack, state.depth + growth, status, state.pc + 1)
    before = state._replace(status=status)
    return jax.tree.map(lambda new, old: jnp.where(status == Status.OK, new, old), after, before)


def _fault(state: _State, op: Array, k: Array, inputs: Value, settings: Settings) -> Array:
    """The status of an instruction whose opcode is good: the smallest of those that hold."""

    def has(members: np.ndarray) -> Array:
        return jnp.asarray(members)[op]

    arity = jnp.asarray(ARITY)[op]
    kinds = jnp.concatenate([state.stack.type, jnp.zeros(_OPERANDS, jnp.int32)])[:_OPERANDS]
    places = jnp.arange(_OPERANDS, dtype=jnp.int32)
    allowed = jnp.asarray(ALLOWED)[op, places, kinds]
    missing_input = (k > 1) | (inputs.type[jnp.clip(k, 0, 1)] == Type.EMPTY)
    out_of_range = (k < 0) | (k >= settings.args)
    zero = (has(_DIVIDES_BY_TOP) & (state.stack.words[0, 0] == 0)) | (has(_DIVIDES_BY_ARG) & (k == 0))
    holds = {
        Status.STACK_UNDERFLOW: state.depth < arity,
        Status.TYPE_ERROR: jnp.any((places < arity) & ~allowed) | (has(_IS_SELECT) & (kinds[0] != kinds[1])),
        Status.BAD_ARGUMENT: (has(READS_ARG) & out_of_range) | (has(_IS_INPUT) & missing_input),
        Status.DIVISION_BY_ZERO: zero,
        Status.EMPTY_LIST: has(_NEEDS_ELEMENT) & (state.stack.length[0] == 0),
        Status.STACK_OVERFLOW: (jnp.asarray(GROWTH)[op] > 0) & (state.depth >= settings.stack),
    }
    return jnp.select(list(holds.values()), [jnp.int32(status) for status in holds], jnp.int32(Status.OK))


def _results(stack: Value, k: Array, inputs: Value) -> Value:
    """The new top of the stack for each opcode: fields `[44]`, `[44]`, `[44, W]`."""
    blank = Value(jnp.int32(0), jnp.int32(0), jnp.zeros_like(stack.words[0]))
    deep = len(stack.type)
    a, b, c = (jax.tree.map(lambda f, i=i: f[i], stack) if i < deep else blank for i in range(_OPERANDS))
    place = jnp.arange(len(a.words), dtype=jnp.int32)
    inside = place < a.length
    x, y = a.words[0], b.words[0]
    divisor = jnp.where(x == 0, 1, x)
    k_divisor = jnp.where(k == 0, 1, k)
    ordered = jnp.sort(jnp.where(inside, a.words, jnp.int32(2**31 - 1)))
    last = jnp.maximum(a.length - 1, 0)

    def scalar(kind: Type, word: Array) -> Value:
        return Value(jnp.int32(kind), jnp.int32(1), blank.words.at[0].set(word.astype(jnp.int32)))

    def integer(word: Array) -> Value:
        return scalar(Type.INT, word)

    def boolean(word: Array) -> Value:
        return scalar(Type.BOOL, word)

    def each(words: Array) -> Value:
        """The operand with these words, zero past its length."""
        return a._replace(words=jnp.where(inside, words, 0))

    def keep(wanted: Array) -> Value:
        """The elements where `wanted`, moved to the front."""
        wanted = wanted & inside
        goes_to = jnp.cumsum(wanted, dtype=jnp.int32) - 1
        lands = wanted[None, :] & (goes_to[None, :] == place[:, None])  # [to, from]
        words = jnp.sum(jnp.where(lands, a.words[None, :], 0), axis=1, dtype=jnp.int32)
        return Value(a.type, jnp.sum(wanted, dtype=jnp.int32), words)

    answers = {
        "NOP": a,
        "INPUT": jax.tree.map(lambda field: field[jnp.clip(k, 0, 1)], inputs),
        "CONST": integer(k),
        "DUP": a,
        "SWAP": b,
        "POP": b,
        "ADD": integer(y + x),
        "SUB": integer(y - x),
        "MUL": integer(y * x),
        "DIV": integer(y // divisor),
        "MOD": integer(y - divisor * (y // divisor)),
        "MIN": integer(jnp.minimum(x, y)),
        "MAX": integer(jnp.maximum(x, y)),
        "ADDI": each(a.words + k),
        "SUBI": each(a.words - k),
        "MULI": each(a.words * k),
        "DIVI": each(a.words // k_divisor),
        "MODI": each(a.words - k_divisor * (a.words // k_divisor)),
        "NEG": each(-a.words),
        "ABS": each(jnp.abs(a.words)),
        "EQ": boolean(y == x),
        "LT": boolean(y < x),
        "GT": boolean(y > x),
        "EQI": boolean(x == k),
        "LTI": boolean(x < k),
        "GTI": boolean(x > k),
        "EVEN": boolean(x % 2 == 0),
        "NOT": boolean(1 - x),
        "AND": boolean(x & y),
        "OR": boolean(x | y),
        "LEN": integer(a.length),
        "SUM": integer(jnp.sum(a.words, dtype=jnp.int32)),
        "MAXL": integer(ordered[last]),
        "MINL": integer(ordered[0]),
        "HEAD": integer(x),
        "LAST": integer(a.words[last]),
        "SORT": each(ordered),
        "REV": each(a.words[jnp.clip(a.length - 1 - place, 0, len(place) - 1)]),
        "TAKE": keep(place < k),
        "DROP": keep(place >= k),
        "FGT": keep(a.words > k),
        "FLT": keep(a.words < k),
        "FEVEN": keep(a.words % 2 == 0),
        "SELECT": jax.tree.map(lambda yes, no: jnp.where(c.words[0] != 0, yes, no), b, a),
    }
    return jax.tree.map(lambda *fields: jnp.stack(fields), *(answers[row.name] for row in INSTRUCTIONS))
