"""Layouts with gaps: the same meaning, every slot reached, and gaps closed again."""

import jax
import jax.numpy as jnp
import numpy as np
from task_samples import tasks

import vm
from vm.layout import close_gaps, insert_gaps

DRAWS = 400


def spread(start, reference):
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), DRAWS)
    return jax.vmap(lambda key: insert_gaps((start, reference), key))(keys)


def instructions(program):
    return [(int(op), int(arg)) for op, arg in zip(program.op, program.arg, strict=True) if (op, arg) != (0, 0)]


def test_gaps_change_neither_program_nor_meaning():
    start, reference = vm.assemble("REV; MULI 2"), vm.assemble("FGT 3; MULI 2; SUM")
    starts, references = spread(start, reference)
    layouts = set()
    for row in range(DRAWS):
        one, other = (jax.tree.map(lambda leaf, row=row: np.asarray(leaf[row]), p) for p in (starts, references))
        assert instructions(one) == instructions(start)
        assert instructions(other) == instructions(reference)
        place = lambda program: tuple(np.flatnonzero(program.op).tolist())  # noqa: E731
        assert set(place(one)) <= set(place(other)), "both got the same gaps"
        layouts.add(place(other))
    x, nothing = vm.from_python([1, 5, 4]), vm.from_python(None)
    inputs = jax.tree.map(lambda *leaf: jnp.stack(leaf), x, nothing)
    outputs = jax.vmap(lambda program: vm.run(program, inputs).output)(references)
    assert {vm.to_python(jax.tree.map(lambda leaf, row=row: leaf[row], outputs)) for row in range(DRAWS)} == {18}
    assert len(layouts) > 40, "of 56 ways to place three instructions in eight slots"
    assert {slot for layout in layouts for slot in layout} == set(range(8))


def test_a_full_program_stays_as_it_is():
    program = vm.assemble("; ".join(["SUM"] * 8))
    for spreaded in spread(program, program):
        assert (np.asarray(spreaded.op) == np.asarray(program.op)).all()


def test_closing_gaps_undoes_them():
    some = tasks()
    keys = jax.random.split(jax.random.key(1, impl="threefry2x32"), len(some.length))
    (laid,) = jax.vmap(lambda program, key: insert_gaps((program,), key))(some.reference, keys)
    closed, length = jax.vmap(close_gaps)(laid)
    np.testing.assert_array_equal(closed.op, some.reference.op)
    np.testing.assert_array_equal(closed.arg, some.reference.arg)
    np.testing.assert_array_equal(length, some.length)
