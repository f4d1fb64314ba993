"""Running programs: `run` and `trace`, unbatched functions that are made for `jax.jit` and `jax.vmap`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from vm import datapath, lowering
from vm.controls import Controls, choose, decode
from vm.types import DEFAULT_SETTINGS, Program, Result, Settings, Trace, Value


def run(program: Program, inputs: Value, settings: Settings = DEFAULT_SETTINGS) -> Result:
    """Run one program on one example.

    Args:
      program: opcodes and arguments, int32 `[L]` each; any integers are allowed.
      inputs: x and y, a `Value` with fields `[2]`, `[2]`, `[2, W]`; y is EMPTY where the task has one input.
      settings: the machine's sizes.

    Returns:
      The output (`EMPTY` after a fault), the `Status` and the index of the faulting slot (L when none).
    """
    _check_shapes(program, inputs, settings)
    return _batchable(settings, False, lowering.available())(decode(*program, settings), inputs)


def trace(program: Program, inputs: Value, settings: Settings = DEFAULT_SETTINGS) -> Trace:
    """Run one program on one example and keep the top of the stack after each slot.

    Args:
      program: opcodes and arguments, int32 `[L]` each.
      inputs: x and y, a `Value` with fields `[2]`, `[2]`, `[2, W]`.
      settings: the machine's sizes.

    Returns:
      The result of `run`, and `tops`, a `Value` with fields `[L]`, `[L]`, `[L, W]`. The stack stays as it is from a
      fault on, and an empty stack's top is EMPTY.
    """
    _check_shapes(program, inputs, settings)
    return _batchable(settings, True, lowering.available())(decode(*program, settings), inputs)


def _check_shapes(program: Program, inputs: Value, settings: Settings) -> None:
    chex.assert_shape([program.op, program.arg], (settings.slots,))
    chex.assert_shape([inputs.type, inputs.length], (2,))
    chex.assert_shape(inputs.words, (2, settings.width))
    chex.assert_type([program.op, program.arg, inputs.type, inputs.length, inputs.words], jnp.int32)


@functools.cache
def _batchable(settings: Settings, with_tops: bool, chunked: bool) -> Callable[[Controls, Value], Any]:
    """The machine for one lane, with a batching rule that turns every mapped axis into one axis of lanes.

    Control words are decoded before, once a program, because a table in here would be a constant of a `custom_vmap`
    function, which a mapped `lax.cond` refuses.
    """

    def execute(call: datapath.Call, controls: Controls, inputs: Value) -> Any:
        return _execute(controls, inputs, settings, with_tops, call)

    kept = functools.partial(execute, lowering.kept_call)
    direct = functools.partial(execute, lowering.direct_call)

    @custom_vmap
    def many(controls: Controls, inputs: Value) -> Any:
        return lowering.map_chunks(kept, controls, inputs) if chunked else direct(controls, inputs)

    @custom_vmap
    def one(controls: Controls, inputs: Value) -> Any:
        return direct(controls, inputs)

    @many.def_vmap
    def more(size: int, mapped: Any, controls: Controls, inputs: Value) -> Any:
        args = _spread(size, mapped, controls, inputs)
        lanes = args[1].type.shape[1]
        flat = jax.tree.map(lambda x: x.reshape(size * lanes, *x.shape[2:]), args)
        result = jax.tree.map(lambda x: x.reshape(size, lanes, *x.shape[1:]), many(*flat))
        return result, jax.tree.map(lambda _: True, result)

    @one.def_vmap
    def first(size: int, mapped: Any, controls: Controls, inputs: Value) -> Any:
        result = many(*_spread(size, mapped, controls, inputs))
        return result, jax.tree.map(lambda _: True, result)

    return one


def _spread(size: int, mapped: Any, *args: Any) -> Any:
    """Give the arguments that aren't mapped the mapped axis too."""

    def spread(is_mapped: bool, x: jax.Array) -> jax.Array:
        return x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))

    return jax.tree.map(spread, tuple(mapped), args)


def _execute(controls: Controls, inputs: Value, settings: Settings, with_tops: bool, call: datapath.Call) -> Any:
    """A `Result` or `Trace` over leading lane axes: controls `[..., L]`, inputs `[..., 2]` and `[..., 2, W]`."""
    slots = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), controls)  # [L, ...]
    task = load(inputs)

    def slot(state: datapath.State, controls: Controls) -> tuple[datapath.State, Any]:
        state = datapath.step(state, controls, task, call)
        return state, (datapath.top(state) if with_tops else None)

    state, tops = lax.scan(slot, datapath.start(task, settings), slots)
    if not with_tops:
        return unload(state)
    lanes = state.status.ndim
    lanes_first = jax.tree.map(lambda x: jnp.moveaxis(x, 0, lanes), _value(*tops))  # [..., L], words [..., L, W]
    return Trace(unload(state), lanes_first)


def load(inputs: Value) -> datapath.Inputs:
    """The inputs as the datapath takes them: from `[..., 2]` and words `[..., 2, W]` to words of their own `[...]`."""
    meta = inputs.type | (inputs.length << 2)  # [..., 2]
    x, y = (tuple(inputs.words[..., index, word] for word in range(inputs.words.shape[-1])) for index in range(2))
    return datapath.Inputs(x, y, meta[..., 0], meta[..., 1])


def unload(state: datapath.State) -> Result:
    """What a machine that ran to its end leaves: a `Result[...]` over its lanes."""
    meta, words = datapath.top(state)
    return Result(_value(choose(state.status == 0, meta, 0), words), state.status, state.pc)


def _value(meta: jax.Array, words: datapath.Words) -> Value:
    """Unpack a cell; an EMPTY one has no words."""
    kind = meta & 3
    stacked = jnp.stack([choose(kind != 0, word, 0) for word in words], axis=-1)  # [..., W]
    return Value(kind, meta >> 2, stacked)
