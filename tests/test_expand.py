"""Every edit of a program at once, against running each edited program from its first slot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from vm_random import random_cases, stack_inputs, stack_programs

import vm
from vm import reference
from vm.controls import decode
from vm.expansion import arrange, expand
from vm.observation import run_all

SMALL = vm.Settings(slots=3, args=4)


def plainly(program, inputs, settings):
    """Every candidate from slot 0: the programs, which are valid, and their outputs."""
    actions = jnp.arange(1, settings.num_actions, dtype=jnp.int32)
    programs, valid = jax.vmap(lambda action: vm.apply_action(program, action, settings))(actions)
    return programs, valid, jax.vmap(lambda edited: run_all(edited, inputs, settings).output)(programs)


def cases(count, examples, seed, settings):
    programs, inputs = random_cases(count * examples, seed, settings)
    inputs = stack_inputs(inputs, settings)
    shape = lambda x: x.reshape(count, examples, *x.shape[1:])  # noqa: E731
    return stack_programs(programs[::examples]), jax.tree.map(shape, inputs)


def assert_equal_trees(one, other):
    jax.tree.map(np.testing.assert_array_equal, tuple(one), tuple(other))


@pytest.mark.parametrize(("count", "examples", "settings"), [(24, 4, vm.Settings()), (9, 3, SMALL), (5, 1, SMALL)])
def test_equals_running_every_candidate_from_the_start(count, examples, settings):
    programs, inputs = cases(count, examples, 1, settings)
    shared = jax.jit(jax.vmap(lambda p, i: expand(p, i, settings)))(programs, inputs)
    plain = jax.jit(jax.vmap(lambda p, i: plainly(p, i, settings)))(programs, inputs)
    assert_equal_trees(shared, plain)
    assert np.mean(np.asarray(shared.outputs.type) > 0) > 0.1  # not all of them failed


def test_many_examples_and_one_program():
    """More examples than walk side by side, and no batch axis."""
    programs, inputs = cases(1, 70, 2, SMALL)
    program, inputs = jax.tree.map(lambda x: x[0], (programs, inputs))
    assert_equal_trees(
        jax.jit(lambda p, i: expand(p, i, SMALL))(program, inputs),
        jax.jit(lambda p, i: plainly(p, i, SMALL))(program, inputs),
    )


def test_nested_batches_and_a_shared_program():
    programs, inputs = cases(6, 4, 3, SMALL)
    grid = jax.jit(jax.vmap(jax.vmap(lambda p, i: expand(p, i, SMALL).outputs, (0, None)), (None, 0)))
    shared = grid(programs, inputs)
    for row in range(6):
        example = jax.tree.map(lambda x, row=row: x[row], inputs)
        for column in range(6):
            program = jax.tree.map(lambda x, column=column: x[column], programs)
            plain = plainly(program, example, SMALL)[2]
            assert_equal_trees(jax.tree.map(lambda x, at=(row, column): x[at], shared), plain)


def test_equals_the_judge():
    """Some of the candidates on the plain interpreter, bad opcodes and arguments in the program too."""
    program = vm.Program(jnp.array([40, 15, 44], jnp.int32), jnp.array([2, 9, -1], jnp.int32))
    inputs = [[[1, 5, 4], None], [[-3, 8], None], [7, 2]]
    said = expand(program, stack_inputs(inputs, SMALL), SMALL)
    rng = np.random.default_rng(0)
    for edit in rng.choice(SMALL.num_actions - 1, 60, replace=False):
        pairs = list(zip(said.programs.op[edit].tolist(), said.programs.arg[edit].tolist(), strict=True))
        for example, cells in enumerate(inputs):
            (kind, length, words), _, _ = reference.run(pairs, cells, SMALL)
            assert int(said.outputs.type[edit, example]) == kind
            assert int(said.outputs.length[edit, example]) == length
            assert tuple(said.outputs.words[edit, example].tolist()) == words


@pytest.mark.parametrize(
    ("examples", "blocks", "size"),
    # 60 candidates: 128 lanes are the most, and 16 fill a vector; 17 examples can't fill vectors with so few lanes
    [(1, 1, 64), (4, 2, 32), (3, 2, 32), (5, 4, 16), (16, 8, 8), (17, 9, 7), (32, 15, 4), (128, 60, 1)],
)
def test_blocks_of_candidates_fill_whole_vectors(examples, blocks, size):
    settings = vm.Settings()
    op = jnp.arange(1, 61, dtype=jnp.int32)[None] % 44 + jnp.zeros((settings.slots, 1), jnp.int32)
    arg = jnp.arange(60, dtype=jnp.int32)[None] % 16 + jnp.zeros((settings.slots, 1), jnp.int32)
    arranged = arrange(vm.Program(op, arg), examples, settings)
    assert arranged.control.shape == (settings.slots, blocks, size)
    plain = decode(op, arg, settings)
    for words, expected in zip(arranged, plain, strict=True):
        np.testing.assert_array_equal(words.reshape(settings.slots, -1)[:, :60], expected)


def test_wrong_shapes_are_refused():
    with pytest.raises(AssertionError):
        expand(vm.blank_program(SMALL), stack_inputs([[1, None]], vm.Settings()))
