"""The machine equals the plain interpreter on random programs with extreme numbers, bad opcodes and bad arguments."""

from __future__ import annotations

import functools
import random
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from vm_random import (
    BAD_ARGS,
    BAD_OPCODES,
    EXTREMES,
    Pairs,
    random_cases,
    random_inputs,
    stack_inputs,
    stack_programs,
    stack_values,
)

import vm
from vm import reference
from vm.types import Settings, Status

DEFAULT = Settings()


@functools.cache
def jitted(settings: Settings, traced: bool) -> Any:
    function = vm.trace if traced else vm.run
    return jax.jit(jax.vmap(lambda program, inputs: function(program, inputs, settings)))


def assert_equal(programs: list[Pairs], inputs: list[list[Any]], settings: Settings, traced: bool) -> Counter[int]:
    """Compare every field of every case; returns how often each status came up."""
    arrays = jitted(settings, traced)(stack_programs(programs), stack_inputs(inputs, settings))
    arrays = jax.tree.map(np.asarray, arrays)
    judged = [reference.trace(p, x, settings) for p, x in zip(programs, inputs, strict=True)] if traced else None
    outcomes = (
        [outcome for outcome, _ in judged]
        if judged is not None
        else [reference.run(p, x, settings) for p, x in zip(programs, inputs, strict=True)]
    )
    outputs, statuses, pcs = zip(*outcomes, strict=True)
    result = arrays.result if traced else arrays
    same = np.array(vm.values_equal(result.output, stack_values(list(outputs), settings.width)))
    same &= (result.status == np.array(statuses)) & (result.pc == np.array(pcs))
    if judged is not None:
        tops = stack_values([top for _, tops in judged for top in tops], settings.width)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), arrays.tops)
        same &= np.asarray(vm.values_equal(flat, tops)).reshape(len(programs), -1).all(axis=1)
    wrong = np.flatnonzero(~same)
    if wrong.size:
        row = wrong[0]
        got = jax.tree.map(lambda x: x[row].tolist(), arrays)
        raise AssertionError(
            f"{wrong.size} differ; first: {programs[row]} on {inputs[row]}: {outcomes[row]}, not {got}"
        )
    return Counter(statuses)


def test_run_equals_the_reference_on_100_000_programs() -> None:
    programs, inputs = random_cases(100_000, seed=0, settings=DEFAULT)
    statuses = assert_equal(programs, inputs, DEFAULT, traced=False)
    assert set(statuses) == set(Status)
    assert statuses[Status.OK] > 60_000  # most of the generator's programs run to their end
    assert {op for pairs in programs for op, _ in pairs} == {*range(44), *BAD_OPCODES}


def test_trace_equals_the_reference() -> None:
    programs, inputs = random_cases(10_000, seed=1, settings=DEFAULT)
    assert_equal(programs, inputs, DEFAULT, traced=True)


@pytest.mark.parametrize(
    "settings",
    [Settings(3, 2, 4, 4), Settings(3, 3, 4, 4), Settings(5, 4, 3, 2), Settings(12, 1, 8, 16), Settings(1, 4, 1, 1)],
    ids=str,
)
def test_other_sizes_equal_the_reference(settings: Settings) -> None:
    programs, inputs = random_cases(4_000, seed=2, settings=settings)
    assert_equal(programs, inputs, settings, traced=True)


def test_every_opcode_and_argument_on_random_stacks() -> None:
    """Each (opcode, argument), good and bad, after a random beginning of the program."""
    source = random.Random(3)
    instructions = [(op, k) for op in [*range(44), *BAD_OPCODES] for k in [*range(16), *BAD_ARGS]]
    programs, inputs = random_cases(8 * len(instructions), seed=4, settings=DEFAULT)
    for index, pairs in enumerate(programs):
        pairs[source.randrange(1, 5)] = instructions[index % len(instructions)]
    assert_equal(programs, inputs, DEFAULT, traced=True)


words = st.integers(-(2**31), 2**31 - 1) | st.sampled_from(EXTREMES) | st.integers(-3, 3)
values = st.one_of(words, st.booleans(), st.lists(words, max_size=8))
codes = st.tuples(st.integers(0, 43) | st.sampled_from(BAD_OPCODES), st.integers(0, 15) | st.sampled_from(BAD_ARGS))
programs_of_eight = st.lists(codes, min_size=8, max_size=8)
single = jax.jit(vm.trace)


@given(programs_of_eight, values, values | st.none())
@hypothesis_settings(max_examples=300, deadline=None, derandomize=True)
def test_any_codes_and_values_equal_the_reference(pairs: Pairs, x: Any, y: Any) -> None:
    program, inputs = jax.tree.map(lambda field: field[0], (stack_programs([pairs]), stack_inputs([[x, y]], DEFAULT)))
    result, tops = jax.tree.map(np.asarray, single(program, inputs))
    outcome, judged_tops = reference.trace(pairs, [x, y])
    assert (reference.cell(result.output), int(result.status), int(result.pc)) == outcome
    assert [reference.cell(jax.tree.map(lambda field, k=k: field[k], tops)) for k in range(8)] == judged_tops


def test_generator_meets_extreme_numbers() -> None:
    source = random.Random(5)
    drawn = [random_inputs(source, DEFAULT)[0] for _ in range(2000)]
    numbers = {number for value in drawn for number in (value if isinstance(value, list) else [value])}
    assert set(EXTREMES) <= numbers
