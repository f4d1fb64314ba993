"""The machine against hand-written cases: every opcode, every status, the order of the checks, the known traps."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from vm_cases import CASES, MAX, MIN, PRECEDENCE, Case, parse
from vm_random import stack_inputs, stack_programs, stack_values

import vm
from vm import reference
from vm.datapath import sorting_network
from vm.isa import INSTRUCTIONS
from vm.types import Settings, Status

SETTINGS = Settings()
ALL_CASES = [case for cases in CASES.values() for case in cases] + PRECEDENCE
run_batch = jax.jit(jax.vmap(vm.run))


def run_cases(cases: list[Case]) -> list[tuple[Any, int, int]]:
    """(output, status, pc) of each case on the machine."""
    programs = [parse(listing) for listing, *_ in cases]
    padded = [pairs + [(0, 0)] * (SETTINGS.slots - len(pairs)) for pairs in programs]
    inputs = stack_inputs([[x, y] for _, x, y, _ in cases], SETTINGS)
    result = jax.tree.map(np.asarray, run_batch(stack_programs(padded), inputs))
    return [
        (
            vm.to_python(jax.tree.map(lambda field, row=row: field[row], result.output)),
            int(result.status[row]),
            int(result.pc[row]),
        )
        for row in range(len(cases))
    ]


def expected(case: Case) -> tuple[Any, int, int]:
    listing, _, _, outcome = case
    if isinstance(outcome, Status):
        return None, outcome, len(parse(listing)) - 1
    return outcome, Status.OK, SETTINGS.slots


@pytest.fixture(scope="module")
def outcomes() -> list[tuple[Any, int, int]]:
    return run_cases(ALL_CASES)


@pytest.mark.parametrize("index", range(len(ALL_CASES)), ids=[f"{c[0]} on {c[1]}, {c[2]}" for c in ALL_CASES])
def test_hand_written_case(index: int, outcomes: list[tuple[Any, int, int]]) -> None:
    output, status, pc = outcomes[index]
    assert (output, status, pc) == expected(ALL_CASES[index])
    assert type(output) is type(expected(ALL_CASES[index])[0])  # True == 1 in Python


def test_cases_meet_every_opcode_and_each_of_its_statuses() -> None:
    assert tuple(CASES) == vm.OPCODES
    for row in INSTRUCTIONS:
        met = {outcome if isinstance(outcome, Status) else Status.OK for *_, outcome in CASES[row.name]}
        assert met == {Status.OK, *row.statuses}, row.name


def test_division_by_zero_leaves_neighbours_alone() -> None:
    good = ("INPUT 1; MOD", 7, 3, 1)
    bad = [(f"INPUT 1; {name}", x, 0, Status.DIVISION_BY_ZERO) for name, x in product(("DIV", "MOD"), (7, -7, 0, MIN))]
    cases = [case for one in bad for case in (good, one, good)]
    assert run_cases(cases) == [expected(case) for case in cases]


def test_constant_zero_divisor_compiles() -> None:
    program = vm.assemble("CONST 0; DIV")
    inputs = jax.tree.map(lambda x: x[0], stack_inputs([[7, None]], SETTINGS))
    for result in (jax.jit(lambda: vm.run(program, inputs))(), vm.run(program, inputs)):
        assert int(result.status) == Status.DIVISION_BY_ZERO
        assert int(result.pc) == 1


def test_division_by_every_argument_is_exact() -> None:
    rng = np.random.default_rng(0)
    edges = [sign * 2**power + near for sign in (1, -1) for power in range(31) for near in range(-3, 4)]
    edges += [
        sign * multiple * k + near
        for k in range(1, 16)
        for multiple in (143165576, 2**24)
        for sign in (1, -1)
        for near in (-1, 0, 1)
    ]
    words = np.concatenate(
        [np.clip(edges, MIN, MAX), MAX - np.arange(300), MIN + np.arange(300), rng.integers(MIN, MAX, 20000)]
    )
    lists = words[: len(words) // 8 * 8].reshape(-1, 8).astype(np.int32)  # [N, 8]
    inputs = vm.Value(
        jnp.tile(jnp.array([3, 0], jnp.int32), (len(lists), 1)),
        jnp.tile(jnp.array([8, 0], jnp.int32), (len(lists), 1)),
        jnp.stack([jnp.asarray(lists), jnp.zeros_like(lists)], 1),
    )
    batch = jax.jit(jax.vmap(vm.run, in_axes=(None, 0)))
    for k in range(1, 16):
        wide = lists.astype(np.int64)
        for name, right in (("DIVI", wide // k), ("MODI", wide % k)):
            np.testing.assert_array_equal(batch(vm.assemble(f"{name} {k}"), inputs).output.words, right)


def test_division_of_edge_pairs_is_exact() -> None:
    edges = sorted(
        {sign * 2**power + near for sign in (1, -1) for power in (0, 1, 8, 16, 24, 30) for near in (-1, 0, 1)}
    )
    edges += [MIN, MIN + 1, MAX, MAX - 1]
    pairs = [(b, a) for b, a in product(edges, edges) if a != 0]
    inputs = stack_inputs([list(pair) for pair in pairs], SETTINGS)
    batch = jax.jit(jax.vmap(vm.run, in_axes=(None, 0)))
    quotient = batch(vm.assemble("INPUT 1; DIV"), inputs).output.words[:, 0]
    remainder = batch(vm.assemble("INPUT 1; MOD"), inputs).output.words[:, 0]
    right = np.array([divmod(b, a) for b, a in pairs]).astype(np.int32)  # wraps floor(INT_MIN / -1)
    np.testing.assert_array_equal(quotient, right[:, 0])
    np.testing.assert_array_equal(remainder, right[:, 1])


def test_a_fault_freezes_every_field() -> None:
    junk = ["CONST 0; DIV", "POP; POP; POP", "44 0; CONST 16", "MAXL; DUP; DUP; DUP; DUP"]
    head = "CONST 5; CONST 0; DIV"  # faults in slot 2 with [x, 5, 0] on the stack
    cases = [(f"{head}; {tail}", 9, None, None) for tail in ("NOP", *junk)]
    assert run_cases(cases) == [(None, Status.DIVISION_BY_ZERO, 2)] * len(cases)
    program = stack_programs([(parse(case[0]) + [(0, 0)] * 8)[:8] for case in cases])
    inputs = stack_inputs([[9, None]] * len(cases), SETTINGS)
    result, tops = jax.jit(jax.vmap(vm.trace))(program, inputs)
    assert not any(np.asarray(field).any() for field in result.output)  # EMPTY has no length and no words
    np.testing.assert_array_equal(tops.words[..., 0], [[5] + [0] * 7] * len(cases))
    np.testing.assert_array_equal(tops.type, np.ones((len(cases), 8)))


def test_trace_of_a_program_that_empties_the_stack() -> None:
    inputs = jax.tree.map(lambda x: x[0], stack_inputs([[[4, 5], None]], SETTINGS))
    trace = jax.jit(vm.trace)(vm.assemble("REV; POP; CONST 3"), inputs)
    tops = [vm.to_python(jax.tree.map(lambda field, slot=slot: field[slot], trace.tops)) for slot in range(4)]
    assert tops == [[5, 4], None, 3, 3]
    assert not np.asarray(trace.tops.words[1]).any()
    assert vm.to_python(trace.result.output) == 3


def test_words_of_dropped_elements_never_return() -> None:
    cases: list[Case] = [
        ("SORT; TAKE 1; ADDI 1; LEN", [3, 2, 1], None, 1),
        ("FGT 15; SUM", [3, 2, 1], None, 0),
        ("DROP 2; REV; MULI 2; SUM", [3, 2, 1], None, 2),
        ("DUP; POP; HEAD; INPUT 0; SUM; ADD", [3, 2, 1], None, 9),
    ]
    assert run_cases(cases) == [expected(case) for case in cases]


def test_the_cells_below_stay_in_order() -> None:
    deep = "CONST 2; CONST 3; CONST 4"  # above x = 1: the stack is 1, 2, 3, 4 with 4 on top
    cases: list[Case] = [
        (f"{deep}; SWAP; SUB; SUB; SUB", 1, None, 1 - (2 - (4 - 3))),
        (f"{deep}; POP; SWAP; SUB; SUB", 1, None, 1 - (3 - 2)),
        (f"{deep}; NEG; SUB; SUB; SUB", 1, None, 1 - (2 - (3 + 4))),
        (f"{deep}; POP; DUP; SUB; SUB", 1, None, 2 - (3 - 3)),
        ("DUP; DUP; DUP; POP; POP; POP; POP", [7, 8], None, None),
        ("DUP; DUP; DUP; NOT; SELECT; NOT; AND", True, None, False),
    ]
    assert run_cases(cases) == [expected(case) for case in cases]


def test_wrong_shapes_are_refused() -> None:
    inputs = jax.tree.map(lambda x: x[0], stack_inputs([[4, None]], SETTINGS))
    with pytest.raises(AssertionError):
        vm.run(vm.blank_program(Settings(slots=3)), inputs)
    with pytest.raises(AssertionError):
        vm.run(jax.tree.map(lambda x: x.astype(jnp.int16), vm.blank_program()), inputs)


@pytest.mark.parametrize("width", range(1, 9))
def test_sorting_network_sorts_every_zero_one_input(width: int) -> None:
    """A network of comparators sorts everything when it sorts all inputs of zeros and ones."""
    wires = np.array(list(product((0, 1), repeat=width))).T  # [W, 2**W]
    right = np.sort(wires, axis=0)
    for low, high in sorting_network(width):
        wires[low], wires[high] = np.minimum(wires[low], wires[high]), np.maximum(wires[low], wires[high])
    np.testing.assert_array_equal(wires, right)
    assert width != 8 or len(sorting_network(8)) == 19


@pytest.mark.parametrize("index", range(len(ALL_CASES)), ids=[f"{c[0]} on {c[1]}, {c[2]}" for c in ALL_CASES])
def test_reference_agrees_with_the_hand_written_case(index: int) -> None:
    case = ALL_CASES[index]
    pairs = parse(case[0])
    output, status, pc = expected(case)
    got = reference.run(pairs, [case[1], case[2]])
    assert got == (reference.cell(output), status, pc if status else len(pairs))


def test_stacked_values_are_what_from_python_makes() -> None:
    samples = [None, 5, -3, True, False, [], [1, 2, 3]]
    stacked = stack_values(samples, 8)
    for row, sample in enumerate(samples):
        single = vm.from_python(sample)
        assert all(np.array_equal(a[row], b) for a, b in zip(stacked, single, strict=True))
