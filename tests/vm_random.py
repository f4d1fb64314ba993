"""Random programs that mostly run, grown slot by slot on the plain reference, with extreme numbers and bad codes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.program_mix import Pairs, grow
from vm import reference
from vm.types import NUM_OPCODES, Program, Settings, Value

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
EXTREMES = (INT_MIN, INT_MIN + 1, INT_MAX, INT_MAX - 1, -1, 0, 1, 2, 2**30, -(2**30), 46341, 65536, -65536)
BAD_OPCODES = (-1, 44, 1000, INT_MAX, INT_MIN)
BAD_ARGS = (-1, 16, INT_MIN, INT_MAX)


def random_word(source: random.Random) -> int:
    draw = source.random()
    if draw < 0.7:
        return source.randint(-20, 20)
    return source.choice(EXTREMES) if draw < 0.85 else source.randint(INT_MIN, INT_MAX)


def random_value(source: random.Random, settings: Settings) -> Any:
    draw = source.random()
    if draw < 0.6:
        return [random_word(source) for _ in range(source.randint(0, settings.width))]
    return random_word(source) if draw < 0.9 else bool(source.getrandbits(1))


def random_inputs(source: random.Random, settings: Settings) -> list[Any]:
    first = None if source.random() < 0.01 else random_value(source, settings)
    return [first, random_value(source, settings) if source.random() < 0.5 else None]


def random_program(source: random.Random, inputs: list[Any], settings: Settings) -> Pairs:
    """L instructions, of which most run on these inputs."""
    cells = [(kind, words[:length]) for kind, length, words in (reference.cell(x, settings.width) for x in inputs)]
    stacks: Sequence[reference.Stack] = [(cells[0],) if cells[0][0] else ()]
    pairs: Pairs = []
    for _ in range(settings.slots):
        draw = source.random()
        if draw < 0.006:
            pairs.append((source.choice(BAD_OPCODES), source.randrange(settings.args)))
        elif draw < 0.012:
            pairs.append((source.randrange(NUM_OPCODES), source.choice(BAD_ARGS)))
        else:
            pair, stacks = grow(source, stacks, [cells], settings, tries=1 if draw < 0.035 else 30)
            pairs.append(pair)
    return pairs


def random_cases(count: int, seed: int, settings: Settings) -> tuple[list[Pairs], list[list[Any]]]:
    source = random.Random(seed)
    inputs = [random_inputs(source, settings) for _ in range(count)]
    return [random_program(source, x, settings) for x in inputs], inputs


def stack_programs(programs: list[Pairs]) -> Program:
    """int32 fields `[N, L]`."""
    pairs = np.asarray(programs, np.int64).astype(np.int32)  # [N, L, 2]
    return Program(jnp.asarray(pairs[..., 0]), jnp.asarray(pairs[..., 1]))


def stack_values(cells: list[Any], width: int) -> Value:
    """int32 fields `[N]`, `[N]`, `[N, W]` from Python values or reference cells."""
    rows = [reference.cell(cell, width) for cell in cells]
    kinds, lengths, words = zip(*rows, strict=True)
    return Value(*(jnp.asarray(np.asarray(field, np.int32)) for field in (kinds, lengths, words)))


def stack_inputs(inputs: list[list[Any]], settings: Settings) -> Value:
    """int32 fields `[N, 2]`, `[N, 2]`, `[N, 2, W]`; a missing y is EMPTY."""
    flat = stack_values([cell for pair in inputs for cell in (*pair, None)[:2]], settings.width)
    return Value(*(field.reshape(len(inputs), 2, *field.shape[1:]) for field in flat))
