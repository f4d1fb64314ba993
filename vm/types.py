"""The machine's sizes and the values that pass through it, all of them plain pytrees of int32 arrays."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NUM_OPCODES = 44
MAX_STACK = 4
THREEFRY = "threefry2x32"  # named wherever a key is made: results must not depend on the process-wide generator


class Type(enum.IntEnum):
    """Type code of a cell."""

    EMPTY = 0
    INT = 1
    BOOL = 2
    LIST = 3


class Status(enum.IntEnum):
    """How a program ended; where several faults hold in one slot the smallest wins, BAD_OPCODE excludes the others."""

    OK = 0
    STACK_UNDERFLOW = 1
    TYPE_ERROR = 2
    BAD_ARGUMENT = 3
    DIVISION_BY_ZERO = 4
    EMPTY_LIST = 5
    STACK_OVERFLOW = 6
    BAD_OPCODE = 7


@dataclass(frozen=True)
class Settings:
    """Static sizes of the machine. Hashable, so it can be a static argument of `jax.jit`.

    Attributes:
      slots: instructions in a program (L).
      stack: cells on the operand stack (D), 1 to 4.
      width: integers in a LIST (W).
      args: immediates (A); an argument is an integer 0..A-1 and is its own value.
    """

    slots: int = 8
    stack: int = 4
    width: int = 8
    args: int = 16

    def __post_init__(self) -> None:
        """Refuse sizes that the machine's packed state cannot hold."""
        limits = {"slots": 64, "stack": MAX_STACK, "width": 8, "args": 16}
        for name, high in limits.items():
            size = getattr(self, name)
            if not 1 <= size <= high:
                raise ValueError(f"Settings.{name} is {size}; use a size between 1 and {high}.")

    @property
    def num_actions(self) -> int:
        """Number N of actions: STOP, and one edit for each (slot, opcode) and (slot, argument)."""
        return 1 + self.slots * (NUM_OPCODES + self.args)


DEFAULT_SETTINGS = Settings()


class Program(NamedTuple):
    """A program: opcode and argument of each slot, both int32 `[..., L]`. A blank slot is NOP (0) with argument 0."""

    op: jax.Array
    arg: jax.Array


class Value(NamedTuple):
    """A cell: `type` and `length` int32 `[...]`, `words` int32 `[..., W]` with zeros past the length."""

    type: jax.Array
    length: jax.Array
    words: jax.Array


class Result(NamedTuple):
    """What a run leaves: the output (EMPTY after a fault), the `Status` and the faulting slot (L when none)."""

    output: Value
    status: jax.Array
    pc: jax.Array


class Trace(NamedTuple):
    """A run with the top of the stack after each slot: `tops` is a `Value` with fields `[..., L]`."""

    result: Result
    tops: Value


class Examples(NamedTuple):
    """Input/output pairs: `inputs` is `Value[..., E, 2]` (x, y; y is EMPTY where unused), `targets` `Value[..., E]`."""

    inputs: Value
    targets: Value


def values_equal(a: Value, b: Value) -> jax.Array:
    """Whether two values have the same type, length and words: bool `[...]` over the shared leading axes."""
    return (a.type == b.type) & (a.length == b.length) & jnp.all(a.words == b.words, axis=-1)


def blank_program(settings: Settings = DEFAULT_SETTINGS) -> Program:
    """The program of L blank slots."""
    zeros = jnp.zeros(settings.slots, jnp.int32)  # [L]
    return Program(zeros, zeros)


PythonValue = int | bool | list[int] | None


def from_python(value: PythonValue, settings: Settings = DEFAULT_SETTINGS) -> Value:
    """A host `Value` from None (EMPTY), an int, a bool or a list of ints.

    Raises:
      ValueError: where the list is longer than the machine's width or a number does not fit 32 bits.
    """
    words = np.zeros(settings.width, np.int32)
    if value is None:
        kind, numbers = Type.EMPTY, []
    elif isinstance(value, bool):
        kind, numbers = Type.BOOL, [int(value)]
    elif isinstance(value, int):
        kind, numbers = Type.INT, [value]
    else:
        kind, numbers = Type.LIST, list(value)
    if len(numbers) > settings.width:
        raise ValueError(f"a list of {len(numbers)} numbers is too long; this machine holds {settings.width}.")
    for number in numbers:
        if not -(2**31) <= number < 2**31:
            raise ValueError(f"{number} does not fit a 32-bit word; use a number from -2147483648 to 2147483647.")
    words[: len(numbers)] = numbers
    return Value(np.int32(kind), np.int32(len(numbers)), words)  # type: ignore[arg-type]


def to_python(value: Value) -> PythonValue:
    """The plain Python form of one unbatched `Value`: None, an int, a bool or a list of ints."""
    kind, length = int(value.type), int(value.length)
    words = [int(word) for word in np.asarray(value.words)[:length]]
    if kind == Type.EMPTY:
        return None
    if kind == Type.LIST:
        return words
    return bool(words[0]) if kind == Type.BOOL else words[0]
