"""The search that knows the targets only: what it finds is checked on the plain interpreter."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import task_samples

import vm
from vm import beam, reference
from vm.beam import likeness, oracle_search, reachable, search_tasks

STEPS, WIDTH = 5, 4


@functools.cache
def tasks():
    return task_samples.tasks()


@functools.cache
def found(chunk=1):
    search = jax.jit(lambda *task: search_tasks(*task, STEPS, WIDTH, chunk=chunk))
    return jax.tree.map(np.asarray, search(tasks().start, tasks().public, tasks().hidden))


def cells(values, *at):
    return int(values.type[at]), int(values.length[at]), tuple(np.asarray(values.words[at]).tolist())


def solves(program, row):
    """On the plain interpreter, on all examples of a task."""
    pairs = list(zip(program.op.tolist(), program.arg.tolist(), strict=True))
    for examples in (tasks().public, tasks().hidden):
        for e in range(examples.targets.type.shape[1]):
            inputs = [cells(examples.inputs, row, e, i) for i in (0, 1)]
            if reference.run(pairs, inputs)[0] != cells(examples.targets, row, e):
                return False
    return True


def test_the_repairs_work_and_none_is_longer_than_the_reference_within_two_edits():
    solved = 0
    for row, distance in enumerate(task_samples.DISTANCES):
        edits, actions = int(found().edits[row]), found().actions[row]
        if distance <= 2:
            assert edits <= distance
        if edits > STEPS:
            assert not actions.any()
            continue
        program = jax.tree.map(lambda x, row=row: x[row], tasks().start)
        for number, action in enumerate(actions[:edits]):
            assert not solves(program, row), number
            program, valid = vm.apply_action(program, action)
            assert valid
        assert solves(program, row)
        assert not actions[edits:].any()
        solved += 1
    assert solved >= 3


@pytest.mark.slow
def test_chunks_change_nothing():
    jax.tree.map(np.testing.assert_array_equal, tuple(found()), tuple(found(chunk=3)))


def test_executions_grow_with_the_budget_until_it_is_found():
    counts = found().executions
    assert counts.shape == (len(task_samples.DISTANCES), STEPS + 1)
    assert (np.diff(counts, axis=1) >= 0).all() and (counts[:, 0] == 0).all()
    for row, edits in enumerate(found().edits):
        if edits <= STEPS:
            assert (counts[row, edits:] == counts[row, edits]).all()
        else:
            assert (np.diff(counts[row]) > 0).all()


def test_a_larger_budget_contains_the_smaller():
    search = jax.jit(lambda *task: search_tasks(*task, STEPS - 1, WIDTH))
    less = search(tasks().start, tasks().public, tasks().hidden)
    np.testing.assert_array_equal(less.edits, np.minimum(found().edits, STEPS))
    np.testing.assert_array_equal(less.executions, found().executions[:, :-1])


def test_reachable_agrees_with_the_search():
    examples = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), tasks().public, tasks().hidden)
    ask = jax.jit(lambda *task: jax.lax.map(lambda t: reachable(*t, 1), task))
    np.testing.assert_array_equal(ask(tasks().start, examples), found().edits <= 1)


@pytest.mark.parametrize(
    ("output", "target", "points"),
    [
        ([1, 2], [1, 2], beam.RIGHT),
        ([1, 3], [1, 2], 4 + 4 + 1),
        ([1, 3, 9], [1, 2], 4 + 1),
        (5, [5], 0),
        (None, [5], 0),
        (7, 5, 4 + 4),
    ],
)
def test_likeness(output, target, points):
    assert int(likeness(vm.from_python(output), vm.from_python(target))) == points


def test_the_likest_differ_in_their_keys():
    score = jnp.array([3, 9, 9, 7, -1, 8], jnp.int32)
    keys = jnp.array([1, 2, 2, 3, 4, 3], jnp.uint32)
    chosen, best = beam._likest(score, keys, 4)
    assert chosen.tolist()[:3] == [1, 5, 0]
    assert best.tolist() == [9, 8, 3, -1]


def test_programs_that_went_on_before_do_not_again():
    """Undoing an edit leads back to the start, which is known; so the start is in no later beam."""
    task = jax.tree.map(lambda x: x[4], (tasks().start, tasks().public, tasks().hidden))
    none = jnp.zeros(STEPS, jnp.int32)
    start = beam._hash_program(task[0])
    state = beam._Beam(
        jnp.int32(0),
        jax.tree.map(lambda x: jnp.broadcast_to(x[None], (WIDTH, *x.shape)), task[0]),
        jnp.arange(WIDTH) == 0,
        jnp.zeros((WIDTH, STEPS), jnp.int32),
        jnp.broadcast_to(start, (STEPS + 1, WIDTH)),
        beam.Search(jnp.int32(STEPS + 1), none, jnp.zeros(STEPS + 1, jnp.int32)),
    )
    deepen = jax.jit(lambda state: beam._deepen(state, *task[1:], vm.DEFAULT_SETTINGS))
    seen = {int(start)}
    for _ in range(3):
        state = deepen(state)
        kept = [int(h) for h, alive in zip(beam._hash_program(state.programs), state.alive, strict=True) if alive]
        assert kept and len(set(kept)) == len(kept) and not seen & set(kept)
        seen |= set(kept)


def test_width_zero_is_the_exact_part():
    task = jax.tree.map(lambda x: x[2], (tasks().start, tasks().public, tasks().hidden))
    search = jax.jit(lambda *task: oracle_search(*task, STEPS, 0))(*task)
    assert int(search.edits) == found().edits[2]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": -1}, "-1 edits"),
        ({"width": -2}, "-2 programs wide"),
        ({"ranked": 0}, "0 examples"),
    ],
)
def test_numbers_out_of_range_are_refused(changed, message):
    start, public = jax.tree.map(lambda x: x[0], (tasks().start, tasks().public))
    with pytest.raises(ValueError, match=message):
        vm.reachable(start, public, **{"k": 1, **changed})
    with pytest.raises(ValueError, match="a search for 0 edits"):
        vm.repair(start, public, 0)
