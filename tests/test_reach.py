"""Exact reachability against breadth-first search over all programs, in plain Python on the plain interpreter."""

import functools
import random

import jax
import numpy as np
import pytest
from vm_random import random_value, stack_inputs, stack_programs, stack_values

import vm
from vm import reference
from vm.reach import reach

SETTINGS = vm.Settings(slots=3, args=2)
READS = {1, 2, 13, 14, 15, 16, 17, 23, 24, 25, 38, 39, 40, 41}  # opcodes with an argument, from the instruction table
EXAMPLES, PUBLIC = 5, 2


def edits_of(pairs):
    """(action, program) of every valid edit."""
    for slot, (op, arg) in enumerate(pairs):
        base = 1 + slot * (44 + SETTINGS.args)
        put = lambda new, slot=slot: (*pairs[:slot], new, *pairs[slot + 1 :])  # noqa: E731
        for other in range(44):
            if other != op:
                yield base + other, put((other, arg if other in READS else 0))
        if op in READS:
            for k in range(SETTINGS.args):
                if k != arg:
                    yield base + 44 + k, put((op, k))


@functools.cache
def layers_of(start, depth):
    """Programs by their distance from the start, 0 to `depth`."""
    layers, known = [{start}], {start}
    for _ in range(depth):
        layers.append({after for pairs in layers[-1] for _, after in edits_of(pairs)} - known)
        known |= layers[-1]
    return layers


def outputs_of(pairs, inputs):
    """A program's outputs, None where it fails on an example."""
    outputs = []
    for cells in inputs:
        output, status, _ = reference.run(pairs, cells, SETTINGS)
        if status:
            return None
        outputs.append(output)
    return tuple(outputs)


def solves(pairs, inputs, outputs):
    return all(
        reference.run(pairs, cells, SETTINGS)[0] == output for cells, output in zip(inputs, outputs, strict=True)
    )


def random_inputs(source):
    return [random_value(source, SETTINGS), source.choice([None, 3])]


STARTS = [
    ((0, 0), (0, 0), (0, 0)),  # blank
    ((0, 1), (0, 0), (0, 0)),  # blank slots that differ in the argument they would keep
    ((3, 0), (0, 0), (0, 0)),
    ((0, 0), (40, 1), (0, 0)),
    ((44, 9), (2, -5), (0, 0)),  # a bad opcode and bad arguments
    ((15, 1), (13, 1), (31, 0)),
]


def make_cases():
    """Starts, inputs and targets: from programs 0 to 6 random edits away, so that all answers occur."""
    source = random.Random(4)
    numbers = tuple([x, None] for x in (4, -1, 7, 0, 2))
    one_slot = ((13, 1), (0, 0), (0, 0))  # x + 1: an opcode and its argument
    cases = [(STARTS[0], numbers, outputs_of(one_slot, numbers))]
    for start in STARTS:
        for edits in (0, 1, 2, 6, 6):
            for _ in range(200):  # a start with bad codes may be too far from any program that runs
                inputs = tuple(random_inputs(source) for _ in range(EXAMPLES))
                wanted = start
                for _ in range(edits):
                    wanted = source.choice(list(edits_of(wanted)))[1]
                outputs = outputs_of(wanted, inputs)
                if outputs is not None and len(set(outputs)) > 1:
                    cases.append((start, inputs, outputs))
                    break
    return cases


CASES = make_cases()


def stack_cases(cases):
    starts = stack_programs([start for start, _, _ in cases])
    plain = [cells for _, inputs, _ in cases for cells in inputs]
    batch = lambda x: x.reshape(len(cases), EXAMPLES, *x.shape[1:])  # noqa: E731
    inputs = jax.tree.map(batch, stack_inputs(plain, SETTINGS))
    targets = stack_values([output for _, _, outputs in cases for output in outputs], SETTINGS.width)
    examples = vm.Examples(inputs, jax.tree.map(batch, targets))
    public, hidden = (jax.tree.map(lambda x, c=c: x[:, c], examples) for c in (slice(PUBLIC), slice(PUBLIC, None)))
    return starts, public, hidden


@functools.cache
def said(k, how="map"):
    one = lambda *task: reach(*task, k, SETTINGS)  # noqa: E731
    many = jax.vmap(one) if how == "vmap" else lambda *tasks: jax.lax.map(lambda task: one(*task), tasks)
    return jax.tree.map(np.asarray, jax.jit(many)(*stack_cases(CASES)))


def test_equals_breadth_first_search():
    distances = []
    for row, (start, inputs, outputs) in enumerate(CASES):
        layers = layers_of(start, 2)
        near = [d for d, layer in enumerate(layers) if any(solves(pairs, inputs, outputs) for pairs in layer)]
        distances.append(min(near, default=3))
        assert int(said(2).edits[row]) == distances[-1], (start, inputs, outputs)
        assert int(said(1).edits[row]) == min(distances[-1], 2)
    assert set(distances) == {0, 1, 2, 3}


def test_the_edits_lead_to_a_right_program():
    both_in_one_slot = 0
    for row, (pairs, inputs, outputs) in enumerate(CASES):
        edits, actions = int(said(2).edits[row]), said(2).actions[row].tolist()
        if edits > 2:
            assert actions == [0, 0]
            continue
        assert actions[edits:] == [0] * (2 - edits)
        for action in actions[:edits]:
            pairs = dict(edits_of(pairs))[action]
        assert outputs_of(pairs, inputs) == outputs
        slots = {(action - 1) // (44 + SETTINGS.args) for action in actions[:edits]}
        both_in_one_slot += edits == 2 and len(slots) == 1
    assert both_in_one_slot


def test_side_by_side_is_the_same():
    jax.tree.map(np.testing.assert_array_equal, tuple(said(2)), tuple(said(2, "vmap")))


def test_counts_each_program_once_where_it_can():
    """Of a blank program one slot stands for all: 43 opcodes."""
    counts = [
        said(1).executions[row].tolist()
        for row, (start, _, _) in enumerate(CASES)
        if start == STARTS[0] and said(1).edits[row] == 2
    ]
    assert counts and all(count == [0, 43] for count in counts)


def test_without_hidden_examples():
    """Fewer examples can only make it easier."""
    start, public, hidden = stack_cases(CASES)
    none = jax.tree.map(lambda x: x[:, :0], hidden)
    search = jax.jit(lambda *tasks: jax.lax.map(lambda task: reach(*task, 1, SETTINGS).edits, tasks))
    assert (np.asarray(search(start, public, none)) <= said(1).edits).all()


def test_other_numbers_of_edits_are_refused():
    task = (jax.tree.map(lambda x: x[0], tree) for tree in stack_cases(CASES[:1]))
    with pytest.raises(ValueError, match="k=3"):
        reach(*task, 3, SETTINGS)


def test_too_many_public_examples_are_refused():
    start, public, hidden = (jax.tree.map(lambda x: x[0], tree) for tree in stack_cases(CASES[:1]))
    many = jax.tree.map(lambda x: np.repeat(np.asarray(x), 100, axis=0), public)
    with pytest.raises(ValueError, match="200 examples"):
        reach(start, many, hidden, 1, SETTINGS)
