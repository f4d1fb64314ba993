"""The machine as one Pallas kernel for GPUs: the same step as everywhere, with the whole state in registers.

A block of the kernel runs 128 lanes through all slots, so that between two slots nothing goes to memory; XLA's own loop
writes and reads the state in every slot. Nothing chooses this path by itself: call `run_lanes` in place of
`jax.vmap(vm.run)` where it was measured to be faster. `experiments/bench.py vm` measures both where there is a GPU.
It goes through Pallas' Triton backend, which jax 0.12 still has but calls deprecated; the other one for GPUs (Mosaic)
does not take the loop over slots.
"""

from __future__ import annotations

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from vm import datapath, lowering
from vm.controls import Controls, choose, decode
from vm.types import DEFAULT_SETTINGS, Program, Result, Settings, Value

BLOCK = 128  # lanes of a block
WARPS = 4  # of 32 threads: one lane a thread


def run_lanes(
    program: Program, inputs: Value, settings: Settings = DEFAULT_SETTINGS, interpret: bool = False
) -> Result:
    """Run N programs, each on its own example, as one kernel. Equal to `jax.vmap(vm.run)`; for use inside `jax.jit`.

    Args:
      program: int32 `[N, L]` each.
      inputs: x and y, a `Value` with fields `[N, 2]`, `[N, 2]`, `[N, 2, W]`.
      settings: the machine's sizes.
      interpret: run the kernel operation by operation on any backend, to test it; slow.

    Returns:
      A `Result` with fields `[N]` and words `[N, W]`.
    """
    lanes = program.op.shape[0]
    chex.assert_shape([program.op, program.arg], (lanes, settings.slots))
    chex.assert_shape([inputs.type, inputs.length], (lanes, 2))
    chex.assert_shape(inputs.words, (lanes, 2, settings.width))
    chex.assert_type([*program, *inputs], jnp.int32)
    blocks = -(-lanes // BLOCK)

    def lanes_last(array: jax.Array) -> jax.Array:
        """`[N, ...]` as `[..., blocks * 128]`, so that neighbouring threads read neighbouring words."""
        padded = jnp.pad(array, [(0, blocks * BLOCK - lanes), *[(0, 0)] * (array.ndim - 1)])
        return jnp.moveaxis(padded, 0, -1)

    meta = inputs.type | (inputs.length << 2)  # [N, 2]
    arguments = [lanes_last(array) for array in (*decode(*program, settings), meta, inputs.words)]
    outputs = [(), (settings.width,), (), ()]  # meta, words, status and pc, without the axis of lanes
    kernel = pl.pallas_call(
        functools.partial(_kernel, settings=settings),
        grid=(blocks,),
        in_specs=[_block(array.shape[:-1]) for array in arguments],
        out_specs=[_block(shape) for shape in outputs],
        out_shape=[jax.ShapeDtypeStruct((*shape, blocks * BLOCK), jnp.int32) for shape in outputs],
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="vm_run",
    )
    top, words, status, pc = (array[..., :lanes] for array in kernel(*arguments))
    return Result(Value(top & 3, top >> 2, jnp.moveaxis(words, 0, -1)), status, pc)


def _block(shape: tuple[int, ...]) -> pl.BlockSpec:
    """Everything that belongs to the 128 lanes of one block."""
    return pl.BlockSpec((*shape, BLOCK), lambda index: (*(0 for _ in shape), index))


def _kernel(
    control: Any,
    numbers: Any,
    checks: Any,
    meta: Any,
    words: Any,
    out_top: Any,
    out_words: Any,
    out_status: Any,
    out_pc: Any,
    *,
    settings: Settings,
) -> None:
    """One block: references to controls `[L, 128]`, `meta` `[2, 128]`, words `[2, W, 128]`, and to the results."""
    x, y = (tuple(words[index, word, :] for word in range(settings.width)) for index in range(2))
    task = datapath.Inputs(x, y, meta[0, :], meta[1, :])

    def slot(index: jax.Array, state: datapath.State) -> datapath.State:
        controls = Controls(control[index, :], numbers[index, :], checks[index, :])
        return datapath.step(state, controls, task, lowering.direct_call)

    state = lax.fori_loop(0, settings.slots, slot, datapath.start(task, settings))
    top, top_words = datapath.top(state)
    exists = (state.status == 0) & ((top & 3) != 0)
    out_top[:] = choose(exists, top, 0)
    for index, word in enumerate(top_words):
        out_words[index, :] = choose(exists, word, 0)
    out_status[:] = state.status
    out_pc[:] = state.pc
