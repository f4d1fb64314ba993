"""One step of the machine for any number of lanes: every instruction runs through the same fixed list pipeline.

The state is a struct of scalars: each word of the stack is an array of its own over the lanes, so that every operation
is elementwise and neither gathers nor minor axes of width W appear. What a slot does is read from packed control words.
All types and lengths sit in one int32, `meta`, six bits a cell with the top lowest; words of cells that `meta` calls
EMPTY are garbage and never reach a result. A fault turns the slot's controls into those of NOP, so that nothing else
needs to keep the old state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from vm.controls import CELL_BITS, CELL_MASK, CHECKS, CONTROL, NOP_CONTROL, NOP_NUMBERS, NUMBERS, Controls, choose
from vm.isa import Filter, Scalar, Source, Window
from vm.types import Settings, Status

Array = jax.Array
Words = tuple[Array, ...]  # W arrays of the lanes' shape
Call = Callable[..., Any]

INT_MAX = 2**31 - 1


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
    deepest = _type(state.meta >> (CELL_BITS * (len(state.cells) - 1)))
    control, numbers, status, pc = call(
        _check, controls, state.meta, deepest, state.status, state.pc, a[0], inputs.x_meta, inputs.y_meta
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


def _check(
    controls: Controls,
    meta: Array,
    deepest: Array,
    status: Array,
    pc: Array,
    top: Array,
    x_meta: Array,
    y_meta: Array,
) -> tuple[Array, Array, Array, Array]:
    """The controls to act on (NOP's after a fault), the status and the pc."""
    control, numbers, checks = controls
    arity = CHECKS.get(checks, "arity")
    is_second = CONTROL.get(control, "source") == Source.INPUT + 1
    needed = (meta << CELL_BITS | 1) >> (arity * CELL_BITS)  # cell `arity - 1` lowest; one that exists for arity 0
    types = CHECKS.get(checks, "types")
    wrong = (meta ^ types) & (types >> 2) & 0b000011_000011_000011
    unequal = CHECKS.flag(checks, "same_type") & (_type(meta ^ (meta >> CELL_BITS)) != 0)
    missing = CHECKS.flag(checks, "reads_input") & (_type(choose(is_second, y_meta, x_meta)) == 0)
    no_divisor = CHECKS.flag(checks, "zero_divisor") & (top == 0)
    no_element = CHECKS.flag(checks, "needs_element") & (_length(meta) == 0)
    full = CHECKS.flag(checks, "pushes") & (deepest != 0)
    static = CHECKS.get(checks, "static_fault")
    fault = choose(full, Status.STACK_OVERFLOW, Status.OK)
    fault = choose(no_element, Status.EMPTY_LIST, fault)
    fault = choose(no_divisor, Status.DIVISION_BY_ZERO, fault)
    fault = choose(missing, Status.BAD_ARGUMENT, fault)
    fault = choose(static != 0, static, fault)
    fault = choose((wrong != 0) | unequal, Status.TYPE_ERROR, fault)
    fault = choose(_type(needed) == 0, Status.STACK_UNDERFLOW, fault)
    status = choose(status == 0, fault, status)
    runs = status == 0
    control, numbers = choose(runs, control, NOP_CONTROL), choose(runs, numbers, NOP_NUMBERS)
    return control, numbers, status, pc + choose(runs, 1, 0)


def _fetch(control: Array, a: Words, b: Words, chooser: Array, meta: Array, inputs: Inputs) -> tuple[Words, Array]:
    """The words that enter the pipeline, and their type and length."""
    source = CONTROL.get(control, "source")
    second = (source == Source.SECOND) | ((source == Source.CHOSEN) & (chooser != 0))
    is_x, is_y = source == Source.INPUT, source == Source.INPUT + 1

    def pick(a: Array, b: Array, x: Array, y: Array) -> Array:
        return choose(is_x, x, choose(is_y, y, choose(second, b, a)))

    words = tuple(map(pick, a, b, inputs.x, inputs.y))
    return words, pick(meta & CELL_MASK, (meta >> CELL_BITS) & CELL_MASK, inputs.x_meta, inputs.y_meta)


def _divide_by_k(numbers: Array, words: Words) -> Words:
    """floor(w / k) of each word, exact for all words and k in 1..15; in float32, as integer division is slow.

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
    scale = choose(CONTROL.flag(control, "scale_by_top"), top, NUMBERS.signed(numbers, "scale"))
    offset = NUMBERS.signed(numbers, "offset")
    factor = NUMBERS.signed(numbers, "factor")
    divide = CONTROL.flag(control, "divide")
    sign = choose(CONTROL.flag(control, "absolute"), -1, 1)

    def affine(word: Array, quotient: Array) -> Array:
        value = scale * word + offset + factor * choose(divide, quotient, top)
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
    wires = [choose(length > index, word, INT_MAX) for index, word in enumerate(words)]
    for low, high in sorting_network(len(words)):
        wires[low], wires[high] = lax.min(wires[low], wires[high]), lax.max(wires[low], wires[high])
    return tuple(lax.select(wanted, wire, word) for wire, word in zip(wires, words, strict=True))


def _scalar(control: Array, numbers: Array, words: Words, left: Array, top: Array, length: Array) -> Array:
    """The first word, replaced by one number where asked for."""
    right = choose(CONTROL.flag(control, "right_is_arg"), NUMBERS.get(numbers, "arg"), top)
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
        first = choose(wanted == scalar, answer, first)
    return first


def _floor_divide(left: Array, right: Array) -> tuple[Array, Array]:
    """floor(left / right) and its remainder; what a zero divisor gives is never used.

    A zero must not reach the division: folding a constant division by zero ends the compiler's process.
    """
    divisor = choose(right == 0, 1, right)
    quotient = lax.div(left, divisor)
    remainder = left - quotient * divisor
    inexact = (remainder != 0) & ((remainder ^ divisor) < 0)
    return quotient - choose(inexact, 1, 0), remainder + choose(inexact, divisor, 0)


def _select_places(control: Array, numbers: Array, words: Words, length: Array) -> tuple[Words, Words]:
    """The words, reversed where asked for, and whether each is kept."""
    width = len(words)
    k = NUMBERS.get(numbers, "arg")
    window = CONTROL.get(control, "window")
    taken = lax.min(k, length)
    low = choose(window == Window.LAST, length - 1, choose(window == Window.DROP, taken, 0))
    high = choose(window == Window.FIRST, 1, choose(window == Window.TAKE, taken, length))
    reverse = CONTROL.flag(control, "reverse")
    low, high = choose(reverse, width - length, low), choose(reverse, width, high)
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
    new_type = choose(result_type != 0, result_type, _type(source_meta))
    bare = choose(new_type == 0, 0, new_type | (count << 2))
    all_bits = (1 << (CELL_BITS * len(cells))) - 1
    under = choose(
        pushes,
        meta,
        choose(pops, meta >> (2 * CELL_BITS), choose(pops_two, meta >> (3 * CELL_BITS), meta >> CELL_BITS)),
    )
    swapped = (under & ~CELL_MASK) | (meta & CELL_MASK)
    meta = ((choose(swap, swapped, under) << CELL_BITS) | bare) & all_bits

    def at(index: int) -> Words:
        return cells[min(index, len(cells) - 1)]

    def move(index: int) -> Words:
        copies_upper = pushes | swap if index == 1 else pushes
        return tuple(
            lax.select(copies_upper, upper, lax.select(pops, lower, lax.select(pops_two, lowest, same)))
            for upper, same, lower, lowest in zip(at(index - 1), at(index), at(index + 1), at(index + 2), strict=True)
        )

    return (top, *(move(index) for index in range(1, len(cells)))), meta
