"""Control words: what each (opcode, argument) makes the datapath do, packed into three int32 by numpy, once."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vm.isa import INSTRUCTIONS, Affine, Instruction, Kind, Source
from vm.types import NUM_OPCODES, Settings, Status, Type

CELL_BITS = 6  # of a cell in the packed types and lengths: two bits of type under four of length
CELL_MASK = (1 << CELL_BITS) - 1


Array = jax.Array


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
    """Packed control words of a slot, int32 over the lanes, or of L slots, int32 `[..., L]`."""

    control: Array  # what the datapath does
    numbers: Array  # the numbers it does it with
    checks: Array  # how the slot can fail


def _affine(numbers: Affine, k: int) -> int:
    return numbers[0] + numbers[1] * k


def _operand_bits(kinds: tuple[Kind, ...]) -> int:
    """For each operand two bits of the type it needs, and above them two bits that say which of those matter."""
    pattern = {Kind.ANY: (0, 0), Kind.INT: (Type.INT, 3), Kind.BOOL: (Type.BOOL, 3), Kind.LIST: (Type.LIST, 3)}
    pattern[Kind.NUM] = (1, 1)  # INT = 1 and LIST = 3 are the odd codes
    bits = [pattern[kind][0] | pattern[kind][1] << 2 for kind in kinds]
    return sum(cell << (CELL_BITS * index) for index, cell in enumerate(bits))


def _static_fault(row: Instruction | None, k: int | None) -> Status:
    """The fault that the stack has no say in, unless it is too small or of a wrong type."""
    if row is None:
        return Status.BAD_OPCODE
    if not row.reads_arg:
        return Status.OK
    if k is None or (row.path.source is Source.INPUT and k > 1):
        return Status.BAD_ARGUMENT
    return Status.DIVISION_BY_ZERO if row.zero_divisor and k == 0 else Status.OK


def _pack_instruction(row: Instruction | None, k: int | None) -> tuple[int, int, int]:
    """The three words of an instruction; None stands for a bad opcode and for a bad argument."""
    static_fault = _static_fault(row, k)
    row = row or INSTRUCTIONS[0]
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


NOP_CONTROL, NOP_NUMBERS, _ = _pack_instruction(INSTRUCTIONS[0], 0)


@functools.cache
def control_tables(args: int) -> Controls:
    """The control words of every instruction: numpy int32 `[45 * (A + 1)]`, opcodes first.

    The last opcode stands for all bad ones, and the last argument too.
    """
    rows = [*INSTRUCTIONS, None]
    columns = [*range(args), None]
    words = np.array([_pack_instruction(row, k) for row in rows for k in columns], np.int32)  # [45 * (A + 1), 3]
    return Controls(*words.T)


def decode(op: Array, arg: Array, settings: Settings) -> Controls:
    """Control words of the instructions, in the shape of `op` and `arg`."""
    row = choose((op >= 0) & (op < NUM_OPCODES), op, NUM_OPCODES)
    column = choose((arg >= 0) & (arg < settings.args), arg, settings.args)
    index = row * (settings.args + 1) + column
    return Controls(
        *(jnp.asarray(table).at[index].get(mode="promise_in_bounds") for table in control_tables(settings.args))
    )


def choose(condition: Array, yes: Array | int, no: Array | int) -> Array:
    """Elementwise choice between int32 arrays of the condition's shape or plain ints."""
    branches = [
        branch if isinstance(branch, jax.Array) else lax.full(condition.shape, branch, jnp.int32)
        for branch in (yes, no)
    ]
    return lax.select(condition, *branches)
