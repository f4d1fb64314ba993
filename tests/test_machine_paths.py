"""Every way of calling the machine gives the same values: eager, jit, vmap, loops, and without the CPU tricks."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from vm_random import random_cases, stack_inputs, stack_programs

import vm
from vm import lowering
from vm.types import Program, Settings, Value

SETTINGS = Settings()
COUNT = 300
Batch = tuple[Program, Value]


@pytest.fixture(scope="module")
def batch() -> Batch:
    programs, inputs = random_cases(COUNT, seed=11, settings=SETTINGS)
    return stack_programs(programs), stack_inputs(inputs, SETTINGS)


@pytest.fixture(scope="module")
def right(batch: Batch) -> vm.Trace:
    """One program at a time, which takes none of the batched code."""
    single = jax.jit(vm.trace)
    rows = [single(*row(batch, index)) for index in range(COUNT)]
    return jax.tree.map(lambda *fields: np.stack(fields), *rows)


def first(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda x: x[:count], tree)


def row(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def assert_same(got: Any, right: Any) -> None:
    chex.assert_trees_all_equal(got, first(right, len(jax.tree.leaves(got)[0])))


@pytest.mark.parametrize("count", [1, 127, 128, 129])
def test_batch_sizes(batch: Batch, right: vm.Trace, count: int) -> None:
    assert_same(jax.jit(jax.vmap(vm.trace))(*first(batch, count)), right)


def test_eager(batch: Batch, right: vm.Trace) -> None:
    assert_same(jax.vmap(vm.trace)(*first(batch, 5)), right)
    chex.assert_trees_all_equal(vm.trace(*row(batch, 3)), row(right, 3))
    chex.assert_trees_all_equal(vm.run(*row(batch, 3)), row(right, 3).result)


def test_numpy_arguments(batch: Batch, right: vm.Trace) -> None:
    assert_same(jax.vmap(vm.run)(*jax.tree.map(np.asarray, first(batch, 3))), right.result)


def test_programs_by_examples(batch: Batch) -> None:
    programs, inputs = first(batch, 20)
    grid = jax.jit(jax.vmap(jax.vmap(vm.run, in_axes=(None, 0)), in_axes=(0, None)))(programs, inputs)  # [20, 20]
    flat = (
        jax.tree.map(lambda x: jnp.repeat(x, 20, axis=0), programs),
        jax.tree.map(lambda x: jnp.tile(x, (20,) + (1,) * (x.ndim - 1)), inputs),
    )
    lanes = jax.jit(jax.vmap(vm.run))(*flat)
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x.reshape(400, *x.shape[2:]), grid), lanes)


def test_three_nested_maps_and_other_axes(batch: Batch, right: vm.Trace) -> None:
    cubes = jax.tree.map(lambda x: x.reshape(10, 10, 3, *x.shape[1:]), batch)
    cubes = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), cubes)  # [3, 10, 10, ...]
    nested = jax.jit(jax.vmap(jax.vmap(jax.vmap(vm.trace)), in_axes=1, out_axes=1))(*cubes)
    back = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(COUNT, *x.shape[3:]), nested)
    assert_same(back, right)


def test_one_program_on_many_examples_and_the_reverse(batch: Batch) -> None:
    programs, inputs = first(batch, 7)
    one_program = jax.jit(jax.vmap(vm.run, in_axes=(None, 0)))(row(programs, 2), inputs)
    one_example = jax.jit(jax.vmap(vm.run, in_axes=(0, None)))(programs, row(inputs, 2))
    chex.assert_trees_all_equal(row(one_program, 2), row(one_example, 2))


def test_inside_loops_and_branches(batch: Batch, right: vm.Trace) -> None:
    some = first(batch, 130)
    many = jax.vmap(vm.trace)

    def everywhere(go: jax.Array, some: Batch) -> tuple[vm.Trace, ...]:
        scanned = lax.scan(lambda carry, _: (carry, many(*some)), None, None, length=2)[1]
        looped = lax.fori_loop(0, 2, lambda _, carry: many(*some), jax.tree.map(jnp.zeros_like, row(scanned, 0)))
        branched = lax.cond(go, lambda: many(*some), lambda: jax.tree.map(jnp.zeros_like, looped))
        one_by_one = lax.map(lambda one: vm.trace(*one), some)
        by_64 = lax.map(lambda one: vm.trace(*one), some, batch_size=64)
        return row(scanned, 1), looped, branched, one_by_one, by_64

    for got in jax.jit(everywhere)(True, some):
        assert_same(got, right)


def test_inside_a_mapped_branch(batch: Batch, right: vm.Trace) -> None:
    blank = vm.trace(vm.blank_program(), row(batch[1], 0))

    def maybe(go: jax.Array, program: Program, inputs: Value) -> vm.Trace:
        return lax.cond(go, vm.trace, lambda *_: blank, program, inputs)

    go = np.arange(130) % 3 != 0
    got = jax.jit(jax.vmap(maybe))(go, *first(batch, 130))
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[go], got), jax.tree.map(lambda x: x[:130][go], right))
    chex.assert_trees_all_equal(row(got, 0), blank)


def test_does_not_disturb_gradients(batch: Batch) -> None:
    def scaled(scale: jax.Array) -> jax.Array:
        return scale * jax.vmap(vm.run)(*first(batch, 130)).pc.sum().astype(jnp.float32)

    assert jax.jit(jax.grad(scaled))(jnp.float32(2)) == scaled(jnp.float32(1))


def test_without_the_tricks(batch: Batch, right: vm.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(program: Program, inputs: Value) -> vm.Trace:
        return vm.trace(program, inputs)

    monkeypatch.setattr(lowering, "_attributes", None)
    assert not lowering.available()
    plain = jax.jit(jax.vmap(fresh)).lower(*batch).compile()
    assert "inlineable" not in (plain.as_text() or "")
    assert_same(plain(*batch), right)


def test_the_tricks_reach_the_compiled_program(batch: Batch) -> None:
    """The attributes are undocumented: this fails when XLA stops keeping the stages and the chunk as calls."""
    if jax.default_backend() == "cpu":
        text = jax.jit(jax.vmap(vm.run)).lower(*batch).compile().as_text() or ""
        calls = [line for line in text.splitlines() if " call(" in line]
        assert sum('xla_cpu_small_call="true"' in line for line in calls) >= 1
        assert sum('inlineable="false"' in line for line in calls) >= 9


def test_two_calls_trace_once(batch: Batch) -> None:
    @jax.jit
    @chex.assert_max_traces(n=1)
    def counted(program: Program, inputs: Value) -> vm.Result:
        return jax.vmap(vm.run)(program, inputs)

    counted(*batch)
    counted(*jax.tree.map(lambda x: x[::-1], batch))


def test_neighbours_do_not_matter(batch: Batch, right: vm.Trace) -> None:
    order = np.random.default_rng(0).permutation(COUNT)
    got = jax.jit(jax.vmap(vm.trace))(*jax.tree.map(lambda x: x[order], batch))
    chex.assert_trees_all_equal(got, jax.tree.map(lambda x: x[order], right))
