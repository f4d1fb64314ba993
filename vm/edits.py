"""Edits of programs: the numbering of actions, which of them are valid, and what each does."""

from __future__ import annotations

from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp

from vm.isa import OPCODES, READS_ARG
from vm.types import DEFAULT_SETTINGS, NUM_OPCODES, Program, Settings

STOP = 0
"""The action that ends editing. It is always valid and changes nothing."""

Kind = Literal["STOP", "SET_OP", "SET_ARG"]


class Action(NamedTuple):
    """The parts of an action: whether it sets an opcode or an argument (neither: STOP), in which slot, to what value.

    For STOP, and for an action outside 0..N-1, both flags are False; `slot` and `value` are then 0.
    """

    sets_op: jax.Array
    sets_arg: jax.Array
    slot: jax.Array
    value: jax.Array


def encode_action(kind: Kind, slot: int = 0, value: int = 0, settings: Settings = DEFAULT_SETTINGS) -> int:
    """The index of an action: STOP is 0, SET_OP(s, o) is 1 + s*(44 + A) + o, SET_ARG(s, k) is 1 + s*(44 + A) + 44 + k.

    Raises:
      ValueError: where the kind, the slot or the value doesn't exist.
    """
    if kind == "STOP":
        return STOP
    limits = {"SET_OP": NUM_OPCODES, "SET_ARG": settings.args}
    if kind not in limits:
        raise ValueError(f"{kind!r} is no kind of action; use STOP, SET_OP or SET_ARG.")
    if not 0 <= slot < settings.slots:
        raise ValueError(f"slot {slot} doesn't exist; use 0 to {settings.slots - 1}.")
    if not 0 <= value < limits[kind]:
        raise ValueError(f"{kind} can't write {value}; use 0 to {limits[kind] - 1}.")
    return 1 + slot * (NUM_OPCODES + settings.args) + (NUM_OPCODES if kind == "SET_ARG" else 0) + value


def decode_action(action: jax.Array, settings: Settings = DEFAULT_SETTINGS) -> Action:
    """The parts of actions, each in the shape of `action` (int32, any shape)."""
    action = jnp.asarray(action)
    exists = (action > STOP) & (action < settings.num_actions)
    edit = jnp.where(exists, action - 1, 0)
    slot, field = edit // (NUM_OPCODES + settings.args), edit % (NUM_OPCODES + settings.args)
    sets_op = exists & (field < NUM_OPCODES)
    value = jnp.where(field < NUM_OPCODES, field, field - NUM_OPCODES)
    return Action(sets_op, exists & ~sets_op, slot, value)


def describe_action(action: int, settings: Settings = DEFAULT_SETTINGS) -> str:
    """An action in words: "STOP", "slot 3: opcode = FGT", "slot 3: argument = 5".

    Raises:
      ValueError: where the action is outside 0..N-1.
    """
    if not 0 <= action < settings.num_actions:
        raise ValueError(f"action {action} doesn't exist; use 0 to {settings.num_actions - 1}.")
    if action == STOP:
        return "STOP"
    slot, field = divmod(int(action) - 1, NUM_OPCODES + settings.args)
    if field < NUM_OPCODES:
        return f"slot {slot}: opcode = {OPCODES[field]}"
    return f"slot {slot}: argument = {field - NUM_OPCODES}"


def reads_arg(op: jax.Array) -> jax.Array:
    """Whether each opcode reads its argument, in the shape of `op`; a bad opcode doesn't."""
    exists = (op >= 0) & (op < NUM_OPCODES)
    return jnp.asarray(READS_ARG)[jnp.where(exists, op, 0)] & exists


def valid_actions(program: Program, settings: Settings = DEFAULT_SETTINGS) -> jax.Array:
    """Which of the N actions are valid on one program: bool `[N]`.

    STOP always is. SET_OP is where it changes the opcode; SET_ARG is where the opcode reads its argument and the
    argument changes. A bad opcode reads none.
    """
    chex.assert_shape([program.op, program.arg], (settings.slots,))
    ops = jnp.arange(NUM_OPCODES, dtype=jnp.int32)
    args = jnp.arange(settings.args, dtype=jnp.int32)
    set_op = program.op[:, None] != ops[None, :]  # [L, 44]
    set_arg = (program.arg[:, None] != args[None, :]) & reads_arg(program.op)[:, None]  # [L, A]
    edits = jnp.concatenate([set_op, set_arg], axis=1).reshape(-1)  # [L * (44 + A)]
    return jnp.concatenate([jnp.ones(1, bool), edits])  # [N]


def apply_action(
    program: Program, action: jax.Array, settings: Settings = DEFAULT_SETTINGS
) -> tuple[Program, jax.Array]:
    """One program after one action, and whether the action was valid; an invalid one changes nothing.

    Args:
      program: int32 `[L]` fields.
      action: int32 `[]`, any integer.
      settings: the machine's sizes.

    Returns:
      The new program and bool `[]`. A new opcode that reads no argument resets the slot's argument to 0.
    """
    chex.assert_shape([program.op, program.arg], (settings.slots,))
    action = jnp.asarray(action, jnp.int32)
    chex.assert_shape(action, ())
    sets_op, sets_arg, slot, value = decode_action(action, settings)
    here = jnp.arange(settings.slots, dtype=jnp.int32) == slot  # [L]
    sets_op = sets_op & jnp.any(here & (program.op != value))
    sets_arg = sets_arg & jnp.any(here & (program.arg != value) & reads_arg(program.op))
    op = jnp.where(here & sets_op, value, program.op)
    arg = jnp.where(here & sets_arg, value, program.arg)
    arg = jnp.where(here & sets_op & ~reads_arg(op), 0, arg)
    return Program(op, arg), sets_op | sets_arg | (action == STOP)
