"""One step of the machine for any number of lanes: every instruction runs through the same fixed list pipeline.

The state is a struct of scalars: each word of the stack is an array of its own over the lanes, so that every operation
is elementwise and neither gathers nor minor axes of width W appear. What a slot does is read from packed control words
that are computed once, in numpy, for every (opcode, argument). All types and lengths sit in one int32, `meta`, six bits
a cell with the top lowest; words of cells that `meta` calls EMPTY are garbage and never reach a result.

Only elementwise operations over equal shapes are used. A fault turns the slot's controls into those of NOP, so that
nothing else needs to keep the old state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vm.isa import INSTRUCTIONS, Affine, Filter, Instruction, Kind, Scalar, Source, Window
from vm.types import NUM_OPCODES, Settings, Status, Type

Array = jax.Array
Words = tuple[Array, ...]  # W arrays of the lanes' shape
Call = Callable[..., Any]

CELL_BITS = 6  # two bits of type, four of length
CELL_MASK = (1 << CELL_BITS) - 1
INT_MAX = 2**31 - 1


class Layout:
    """Bit fields of a packed int32, the first one lowest."""

    def __init__(self, **widths: int) -> None:
        """Lay the fields out one after the other, 31 bits at most (so that a packed word is never negative)."""
        self.widths = widths
        ends = np.cumsum(list(widths.values())).tolist()
        if ends[-1] > 31:
            raise ValueError(f"fields of {ends[-1]} bits don't fit 31 bits.")
        self.lows = {name: end - width for (name, width), end in zip(widths.items(), ends, strict=True)}

    def pack(self, **fields: int) -> int:
        """The word that holds these fields; a negative field is held in two's complement."""
        return sum((fields[name] & ((1 << width) - 1)) << self.lows[name] for name, width in self.widths.items())

    def get(self, word: Array, name: str) -> Array:
        """One field, not negative."""
        return (word >> self.lows[name]) & ((1 << self.widths[name]) - 1)

    def signed(self, word: Array, name: str) -> Array:
        """One field in two's complement."""
        unused = 32 - self.widths[name]
        return (word << (unused - self.lows[name])) >> unused

    def flag(self, word: Array, name: str) -> Array:
        """Whether a one-bit field is set."""
        return (word & (1 << self.lows[name])) != 0


CONTROL = Layout(
    source=3,
    scale_by_top=1,
    divide=1,
    absolute=1,
    sort=1,
    scalar=4,
    right_is_arg=1,
    reverse=1,
    window=3,
    filter=2,
    result_type=2,
    lift=2,
    swap=1,
)
NUMBERS = Layout(arg=6, scale=6, offset=6, factor=6)
CHECKS = Layout(
    types=18, static_fault=3, arity=2, same_type=1, reads_input=1, zero_divisor=1, needs_element=1, pushes=1
)


class Controls(NamedTuple):
    """Packed control words of a slot, or of L slots."""

    control: Array
    numbers: Array
    checks: Array


class State(NamedTuple):
    """The machine between two slots: D cells of W words, the packed types and lengths, the status and the pc."""

    cells: tuple[Words, ...]
    meta: Array
    status: Array
    pc: Array


class Inputs(NamedTuple):
    """The task's inputs x and y with their packed type and length."""

    x: Words
    y: Words
    x_meta: Array
    y_meta: Array


# --- control words -----------------------------------------------------------------------------------------------


def _affine(numbers: Affine, k: int) -> int:
    return numbers[0] + numbers[1] * k


def _operand_bits(kinds: tuple[Kind, ...]) -> int:
    """For each operand two bits of the type it needs, and above them two bits that say which of those matter."""
    pattern = {Kind.ANY: (0, 0), Kind.INT: (Type.INT, 3), Kind.BOOL: (Type.BOOL, 3), Kind.LIST: (Type.LIST, 3)}
    pattern[Kind.NUM] = (1, 1)  # INT = 1 and LIST = 3 are the odd codes
    bits = [pattern[kind][0] | pattern[kind][1] << 2 for kind in kinds]
    return sum(cell << (CELL_BITS * index) for index, cell in enumerate(bits))


def _pack(row: Instruction | None, k: int | None) -> tuple[int, int, int]:
    """The three words of an instruction; None stands for a bad opcode and for a bad argument."""
    if row is None:
        nop = _pack(INSTRUCTIONS[0], 0)
        return nop[0], nop[1], CHECKS.pack(**dict.fromkeys(CHECKS.widths, 0) | {"static_fault": Status.BAD_OPCODE})
    static_fault = Status.OK
    if row.reads_arg:
        reads_missing_input = row.path.source is Source.INPUT and k is not None and k > 1
        if k is None or reads_missing_input:
            static_fault = Status.BAD_ARGUMENT
        elif k == 0 and row.zero_divisor:
            static_fault = Status.DIVISION_BY_ZERO
    k = k or 0
    path = row.path
    result_type = {Kind.INT: Type.INT, Kind.BOOL: Type.BOOL}.get(row.results[0] if row.results else Kind.ANY, 0)
    control = CONTROL.pack(
        source=path.source + (min(k, 1) if path.source is Source.INPUT else 0),
        scale_by_top=path.scale_by_top,
        divide=path.divide,
        absolute=path.absolute,
        sort=path.sort,
        scalar=path.scalar,
        right_is_arg=row.reads_arg,
        reverse=path.reverse,
        window=path.window,
        filter=path.filter,
        result_type=result_type,
        lift=row.growth,
        swap=len(row.results) == 2 and row.growth == 0,
    )
    numbers = NUMBERS.pack(
        arg=k, scale=_affine(path.scale, k), offset=_affine(path.offset, k), factor=_affine(path.factor, k)
    )
    checks = CHECKS.pack(
        types=_operand_bits(row.operands),
        static_fault=static_fault,
        arity=len(row.operands),
        same_type=row.same_type,
        reads_input=path.source is Source.INPUT,
        zero_divisor=row.zero_divisor and not row.reads_arg,
        needs_element=row.needs_element,
        pushes=row.growth > 0,
    )
    return control, numbers, checks


@functools.cache
def control_tables(args: int) -> Controls:
    """The control words of every (opcode, argument): numpy int32 `[45 * (A + 1)]`, the last row and column for bad ones."""
    rows = [*INSTRUCTIONS, None]
    columns = [*range(args), None]
    words = np.array([_pack(row, k) for row in rows for k in columns], np.int32)  # [45 * (A + 1), 3]
    return Controls(*words.T)  # type: ignore[arg-type]


def decode(op: Array, arg: Array, settings: Settings) -> Controls:
    """Control words of the instructions, in the shape of `op` and `arg`."""
    row = _where((op >= 0) & (op < NUM_OPCODES), op, NUM_OPCODES)
    column = _where((arg >= 0) & (arg < settings.args), arg, settings.args)
    index = row * (settings.args + 1) + column
    tables = control_tables(settings.args)
    return Controls(*(jnp.asarray(table).at[index].get(mode="promise_in_bounds") for table in tables))


# --- the step ----------------------------------------------------------------------------------------------------


def _where(condition: Array, yes: Array | int, no: Array | int) -> Array:
    """Elementwise choice between int32 arrays of the condition's shape or plain ints."""
    branches = [
        branch if isinstance(branch, jax.Array) else lax.full(condition.shape, branch, jnp.int32)
        for branch in (yes, no)
    ]
    return lax.select(condition, *branches)


def _type(meta: Array) -> Array:
    return meta & 3


def _length(meta: Array) -> Array:
    return (meta >> 2) & 15


def start(inputs: Inputs, settings: Settings) -> State:
    """The machine before the first slot: x on the stack and nothing else."""
    zero = lax.full_like(inputs.x_meta, 0)
    blank = (zero,) * settings.width
    return State((inputs.x, *(blank,) * (settings.stack - 1)), inputs.x_meta, zero, zero)


def top(state: State) -> tuple[Array, Words]:
    """Type and length, packed, and words of the top of the stack; the words of an EMPTY one are garbage."""
    return state.meta & CELL_MASK, state.cells[0]


def step(state: State, controls: Controls, inputs: Inputs, call: Call) -> State:
    """The machine after one slot.

    Args:
      state: the machine before it.
      controls: control words of the slot.
      inputs: the task's inputs.
      call: applies a stage to its arguments; it may change how the stage is compiled, never what it computes.
    """
    blank = (lax.full_like(state.meta, 0),) * len(state.cells[0])
    a, b, c = (*state.cells, blank, blank)[:3]
    control, numbers, status, pc = call(
        _check[len(state.cells)], state.meta, state.status, state.pc, a[0], controls, inputs.x_meta, inputs.y_meta
    )
    source, meta = call(_fetch, control, a, b, c[0], state.meta, inputs)
    quotients = call(_divide_by_k, numbers, source)
    words = call(_affine_words, control, numbers, source, quotients, a[0])
    ordered = call(_sort, control, words, _length(meta))
    first = call(_scalar, control, numbers, ordered, source[0], a[0], _length(meta))
    ordered, keep = call(_select_places, control, numbers, (first, *ordered[1:]), _length(meta))
    top, count = call(_compact, ordered, keep)
    cells, meta = call(_settle, control, state.cells, top, count, state.meta, meta)
    return State(cells, meta, status, pc)


def _checks(
    depth: int, meta: Array, status: Array, pc: Array, top: Array, controls: Controls, x_meta: Array, y_meta: Array
) -> tuple[Array, Array, Array, Array]:
    """The controls to act on (NOP's after a fault), the status and the pc."""
    control, numbers, checks = controls
    arity = CHECKS.get(checks, "arity")
    is_second = CONTROL.get(control, "source") == Source.INPUT + 1
    needed = (meta << CELL_BITS | 1) >> (arity * CELL_BITS)  # cell `arity - 1` lowest; one that exists for arity 0
    types = CHECKS.get(checks, "types")
    wrong = (meta ^ types) & (types >> 2) & 0b000011_000011_000011
    unequal = CHECKS.flag(checks, "same_type") & (_type(meta ^ (meta >> CELL_BITS)) != 0)
    missing = CHECKS.flag(checks, "reads_input") & (_type(_where(is_second, y_meta, x_meta)) == 0)
    no_divisor = CHECKS.flag(checks, "zero_divisor") & (top == 0)
    no_element = CHECKS.flag(checks, "needs_element") & (_length(meta) == 0)
    full = CHECKS.flag(checks, "pushes") & (_type(meta >> (CELL_BITS * (depth - 1))) != 0)
    static = CHECKS.get(checks, "static_fault")
    fault = _where(full, Status.STACK_OVERFLOW, Status.OK)
    fault = _where(no_element, Status.EMPTY_LIST, fault)
    fault = _where(no_divisor, Status.DIVISION_BY_ZERO, fault)
    fault = _where(missing, Status.BAD_ARGUMENT, fault)
    fault = _where(static != 0, static, fault)
    fault = _where((wrong != 0) | unequal, Status.TYPE_ERROR, fault)
    fault = _where(_type(needed) == 0, Status.STACK_UNDERFLOW, fault)
    status = _where(status == 0, fault, status)
    runs = status == 0
    nop = _pack(INSTRUCTIONS[0], 0)
    return _where(runs, control, nop[0]), _where(runs, numbers, nop[1]), status, pc + _where(runs, 1, 0)


_check = [functools.partial(_checks, depth) for depth in range(5)]  # one function object a depth, for the jit cache


def _fetch(control: Array, a: Words, b: Words, chooser: Array, meta: Array, inputs: Inputs) -> tuple[Words, Array]:
    """The words that enter the pipeline, and their type and length."""
    source = CONTROL.get(control, "source")
    second = (source == Source.SECOND) | ((source == Source.CHOSEN) & (chooser != 0))
    is_x, is_y = source == Source.INPUT, source == Source.INPUT + 1

    def pick(a: Array, b: Array, x: Array, y: Array) -> Array:
        return _where(is_x, x, _where(is_y, y, _where(second, b, a)))

    words = tuple(map(pick, a, b, inputs.x, inputs.y))
    return words, pick(meta & CELL_MASK, (meta >> CELL_BITS) & CELL_MASK, inputs.x_meta, inputs.y_meta)


def _divide_by_k(numbers: Array, words: Words) -> Words:
    """floor(w / k) of each word, exact for all 32-bit words and k in 1..15, in float32 because integer division is slow.

    A coarse quotient is at most a few hundred off; the remainder that it leaves is exact and small, so that the second
    quotient, shifted to be positive and by half of its granularity 1/k, truncates to the right integer.
    """
    k = lax.max(NUMBERS.get(numbers, "arg"), lax.full_like(numbers, 1))
    inverse = 1.0 / k.astype(jnp.float32)
    shift = 512.0 + 0.5 * inverse

    def divide(word: Array) -> Array:
        coarse = (word.astype(jnp.float32) * inverse).astype(jnp.int32)
        rest = word - coarse * k
        return coarse + ((rest.astype(jnp.float32) * inverse + shift).astype(jnp.int32) - 512)

    return tuple(map(divide, words))


def _affine_words(control: Array, numbers: Array, words: Words, quotients: Words, top: Array) -> Words:
    """`scale * w + offset + factor * q` of each word, and its absolute value where asked for."""
    scale = _where(CONTROL.flag(control, "scale_by_top"), top, NUMBERS.signed(numbers, "scale"))
    offset = NUMBERS.signed(numbers, "offset")
    factor = NUMBERS.signed(numbers, "factor")
    divide = CONTROL.flag(control, "divide")
    sign = _where(CONTROL.flag(control, "absolute"), -1, 1)

    def affine(word: Array, quotient: Array) -> Array:
        value = scale * word + offset + factor * _where(divide, quotient, top)
        return lax.max(value, value * sign)

    return tuple(map(affine, words, quotients))


@functools.cache
def sorting_network(width: int) -> tuple[tuple[int, int], ...]:
    """Comparators (i, j), i < j, that sort `width` wires: Batcher's odd-even merge sort (Knuth, TAOCP 3, 5.2.2 M)."""
    pairs = []
    p = 1
    while p < width:
        k = p
        while k >= 1:
            for j in range(k % p, width - k, 2 * k):
                for i in range(min(k, width - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return tuple(pairs)


def _sort(control: Array, words: Words, length: Array) -> Words:
    """The words in ascending order where asked for; places past the length then hold garbage."""
    wanted = CONTROL.flag(control, "sort")
    wires = [_where(length > index, word, INT_MAX) for index, word in enumerate(words)]
    for low, high in sorting_network(len(words)):
        wires[low], wires[high] = lax.min(wires[low], wires[high]), lax.max(wires[low], wires[high])
    return tuple(lax.select(wanted, wire, word) for wire, word in zip(wires, words, strict=True))


def _scalar(control: Array, numbers: Array, words: Words, left: Array, top: Array, length: Array) -> Array:
    """The first word, replaced by one number where asked for."""
    right = _where(CONTROL.flag(control, "right_is_arg"), NUMBERS.get(numbers, "arg"), top)
    wanted = CONTROL.get(control, "scalar")
    quotient, remainder = _floor_divide(left, right)
    answers = {
        Scalar.EQUAL: (left == right).astype(jnp.int32),
        Scalar.LESS: (left < right).astype(jnp.int32),
        Scalar.GREATER: (left > right).astype(jnp.int32),
        Scalar.EVEN: (left & 1) ^ 1,
        Scalar.MINIMUM: lax.min(left, right),
        Scalar.MAXIMUM: lax.max(left, right),
        Scalar.QUOTIENT: quotient,
        Scalar.REMAINDER: remainder,
        Scalar.SUM: functools.reduce(lax.add, words),
        Scalar.LENGTH: length,
    }
    first = words[0]
    for scalar, answer in answers.items():
        first = _where(wanted == scalar, answer, first)
    return first


def _floor_divide(left: Array, right: Array) -> tuple[Array, Array]:
    """floor(left / right) and its remainder; what a zero divisor gives is never used.

    A zero must not reach the division: folding a constant division by zero ends the compiler's process.
    """
    divisor = _where(right == 0, 1, right)
    quotient = lax.div(left, divisor)
    remainder = left - quotient * divisor
    inexact = (remainder != 0) & ((remainder ^ divisor) < 0)
    return quotient - _where(inexact, 1, 0), remainder + _where(inexact, divisor, 0)


def _select_places(control: Array, numbers: Array, words: Words, length: Array) -> tuple[Words, Words]:
    """The words, reversed where asked for, and whether each is kept."""
    width = len(words)
    k = NUMBERS.get(numbers, "arg")
    window = CONTROL.get(control, "window")
    taken = lax.min(k, length)
    low = _where(window == Window.LAST, length - 1, _where(window == Window.DROP, taken, 0))
    high = _where(window == Window.FIRST, 1, _where(window == Window.TAKE, taken, length))
    reverse = CONTROL.flag(control, "reverse")
    low, high = _where(reverse, width - length, low), _where(reverse, width, high)
    chosen = CONTROL.get(control, "filter")
    above, below, even = chosen == Filter.ABOVE, chosen == Filter.BELOW, chosen == Filter.EVEN

    def kept(index: int, word: Array) -> Array:
        refused = (above & (word <= k)) | (below & (word >= k)) | (even & ((word & 1) != 0))
        return (low <= index) & (high > index) & ~refused

    ordered = tuple(lax.select(reverse, back, word) for word, back in zip(words, words[::-1], strict=True))
    return ordered, tuple(kept(index, word) for index, word in enumerate(ordered))


def _compact(words: Words, keep: Words) -> tuple[Words, Array]:
    """The kept words moved to the front with zeros behind them, and their number."""
    zero = lax.full_like(words[0], 0)
    result: list[Array] = []
    for word, kept in zip(words[::-1], keep[::-1], strict=True):
        shifted = [word, *result]
        stays = [*result, zero]
        result = [lax.select(kept, yes, no) for yes, no in zip(shifted, stays, strict=True)]
    count = functools.reduce(lax.add, (kept.astype(jnp.int32) for kept in keep))
    return tuple(result), count


def _settle(
    control: Array, cells: tuple[Words, ...], top: Words, count: Array, meta: Array, source_meta: Array
) -> tuple[tuple[Words, ...], Array]:
    """The stack with the new top and the other cells moved up or down under it."""
    lift = CONTROL.signed(control, "lift")
    swap = CONTROL.flag(control, "swap")
    pushes, pops, pops_two = lift == 1, lift == -1, lift == -2
    result_type = CONTROL.get(control, "result_type")
    new_type = _where(result_type != 0, result_type, _type(source_meta))
    bare = _where(new_type == 0, 0, new_type | (count << 2))
    all_bits = (1 << (CELL_BITS * len(cells))) - 1
    under = _where(
        pushes, meta, _where(pops, meta >> (2 * CELL_BITS), _where(pops_two, meta >> (3 * CELL_BITS), meta >> CELL_BITS))
    )
    swapped = (under & ~CELL_MASK) | (meta & CELL_MASK)
    meta = ((_where(swap, swapped, under) << CELL_BITS) | bare) & all_bits

    def at(index: int) -> Words:
        return cells[min(index, len(cells) - 1)]

    def move(index: int) -> Words:
        copies_upper = pushes | swap if index == 1 else pushes
        return tuple(
            lax.select(copies_upper, upper, lax.select(pops, lower, lax.select(pops_two, lowest, same)))
            for upper, same, lower, lowest in zip(at(index - 1), at(index), at(index + 1), at(index + 2), strict=True)
        )

    return (top, *(move(index) for index in range(1, len(cells)))), meta
