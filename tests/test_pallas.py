"""The Pallas kernel gives the machine's values, in interpret mode, and compiles to a kernel for CUDA without a GPU."""

from __future__ import annotations

import functools

import chex
import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from vm_random import random_cases, stack_inputs, stack_programs

import vm
from vm.pallas_kernel import BLOCK, run_lanes
from vm.types import Program, Settings, Status, Value


def batch(count: int, settings: Settings, seed: int) -> tuple[Program, Value]:
    programs, inputs = random_cases(count, seed, settings)
    return stack_programs(programs), stack_inputs(inputs, settings)


def both(program: Program, inputs: Value, settings: Settings) -> tuple[vm.Result, vm.Result]:
    kernel = jax.jit(functools.partial(run_lanes, settings=settings, interpret=True))
    machine = jax.jit(jax.vmap(lambda program, inputs: vm.run(program, inputs, settings)))
    return kernel(program, inputs), machine(program, inputs)


def test_the_kernel_equals_the_machine() -> None:
    got, right = both(*batch(10_000, Settings(), seed=21), Settings())
    chex.assert_trees_all_equal(got, right)
    assert set(right.status.tolist()) == set(Status)


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_any_number_of_lanes(count: int) -> None:
    chex.assert_trees_all_equal(*both(*batch(count, Settings(), seed=22), Settings()))


@pytest.mark.parametrize("settings", [Settings(3, 2, 4, 4), Settings(12, 1, 8, 16), Settings(1, 4, 1, 1)], ids=str)
def test_other_sizes(settings: Settings) -> None:
    chex.assert_trees_all_equal(*both(*batch(300, settings, seed=23), settings))


def test_wrong_shapes_are_refused() -> None:
    program, inputs = batch(4, Settings(), seed=24)
    with pytest.raises(AssertionError):
        run_lanes(program, inputs, Settings(slots=3))


def test_it_lowers_to_one_triton_kernel_for_cuda() -> None:
    arguments = batch(2 * BLOCK, Settings(), seed=25)
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with use_abstract_mesh(AbstractMesh((1,), ("lanes",), abstract_device=device)):
        text = jax.jit(run_lanes).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call" in line]
    assert len(calls) == 1
    assert "gpu.triton" in calls[0]
    assert "grid_x = 2" in calls[0]
