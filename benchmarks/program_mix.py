"""Random programs that mostly run: each instruction is drawn until the plain reference can carry it out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vm import reference
from vm.types import DEFAULT_SETTINGS, NUM_OPCODES, Program, Settings, Type, Value

Pairs = list[tuple[int, int]]
TRIES = 200  # an empty stack leaves one instruction in twenty that runs
BLIND = 0.01  # share of slots that are drawn once, whether they run or not
LOWEST, HIGHEST = -20, 40  # numbers in inputs, as in the tasks


class Mix(NamedTuple):
    """N programs with E examples each: fields int32 `[N, L]`, and `[N, E, 2]` or `[N, E, 2, W]`, numpy arrays."""

    program: Program
    inputs: Value


def random_instruction(source: random.Random, settings: Settings) -> tuple[int, int]:
    """Any opcode with any argument."""
    return source.randrange(NUM_OPCODES), source.randrange(settings.args)


def grow(
    source: random.Random,
    stacks: Sequence[reference.Stack],
    inputs: Sequence[Sequence[reference.Cell]],
    settings: Settings,
    tries: int,
) -> tuple[tuple[int, int], Sequence[reference.Stack]]:
    """A random instruction that runs on every one of these stacks, if so many tries meet one, and the stacks after it.

    Args:
      source: where randomness comes from.
      stacks: the stack before the instruction, top first, on each example.
      inputs: the inputs of each example.
      settings: the machine's sizes.
      tries: instructions to draw, at least 1; the last one is given whether it runs or not, and then the stacks stay.
    """
    for _ in range(tries):
        op, k = random_instruction(source, settings)
        try:
            after = [
                reference.step(stack, op, k, cells, settings.stack, settings.args)
                for stack, cells in zip(stacks, inputs, strict=True)
            ]
            return (op, k), after
        except reference.Fault:
            pass
    return (op, k), stacks


def program_mix(count: int, distinct: int, examples: int = 4, settings: Settings = DEFAULT_SETTINGS) -> Mix:
    """The programs of the benchmark: grown on their examples, and repeated after the first `distinct` ones.

    Three in five take a list, the others an integer; two in three have a second input. One slot in a hundred is drawn
    blindly, as an edit can be. The examples of a program differ in their numbers and in the lengths of lists.
    """
    source = random.Random(0)
    rows = min(count, distinct)
    programs, inputs = [], []
    for _ in range(rows):
        kinds = [Type.LIST if source.random() < 0.6 else Type.INT, source.choice((Type.EMPTY, Type.LIST, Type.INT))]
        given = [[_random_cell(source, kind, settings) for kind in kinds] for _ in range(examples)]
        outside = [[reference.cell(value, settings.width) for value in example] for example in given]
        cells = [[(kind, words[:length]) for kind, length, words in example] for example in outside]
        programs.append(_random_program(source, cells, settings))
        inputs.append(outside)
    chosen = np.arange(count) % rows
    pairs = np.array(programs, np.int32)[chosen]  # [N, L, 2]
    flat = [cell for example in inputs for pair in example for cell in pair]
    fields = (np.array([cell[part] for cell in flat], np.int32) for part in range(3))
    shaped = (field.reshape(rows, examples, 2, *field.shape[1:])[chosen] for field in fields)
    return Mix(Program(pairs[..., 0].copy(), pairs[..., 1].copy()), Value(*shaped))  # type: ignore[arg-type]


def _random_program(source: random.Random, inputs: list[list[reference.Cell]], settings: Settings) -> Pairs:
    stacks: Sequence[reference.Stack] = [(x,) for x, _ in inputs]
    pairs = []
    for _ in range(settings.slots):
        pair, stacks = grow(source, stacks, inputs, settings, 1 if source.random() < BLIND else TRIES)
        pairs.append(pair)
    return pairs


def _random_cell(source: random.Random, kind: Type, settings: Settings) -> Any:
    if kind is Type.EMPTY:
        return None
    if kind is Type.INT:
        return source.randint(LOWEST, HIGHEST)
    return [source.randint(LOWEST, HIGHEST) for _ in range(source.randint(1, settings.width))]
