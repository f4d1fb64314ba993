"""Edits against a plain model of programs as lists: numbering, validity and effect of every action."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from vm_random import BAD_ARGS, BAD_OPCODES, Pairs, stack_programs

import vm
from vm import edits, reference
from vm.isa import READS_ARG
from vm.types import Settings

SIZES = [Settings(), Settings(slots=3, stack=2, width=4, args=4), Settings(slots=1, args=1)]
OUTSIDE = (-1, -2, -481, 2**31 - 1, -(2**31))


def model(pairs: Pairs, action: int, settings: Settings) -> tuple[Pairs, bool]:
    """The program after one action and whether it is valid, by walking through the numbering one action at a time."""
    if action == 0:
        return pairs, True
    number = 1
    for slot, (op, arg) in enumerate(pairs):
        reads = 0 <= op < 44 and reference.NAMES[op] in reference.READS_ARGUMENT
        for new_op in range(44):
            if number == action:
                keeps = reference.NAMES[new_op] in reference.READS_ARGUMENT
                changed = (new_op, arg if keeps else 0)
                return (pairs[:slot] + [changed] + pairs[slot + 1 :], True) if new_op != op else (pairs, False)
            number += 1
        for new_arg in range(settings.args):
            if number == action:
                changed = (op, new_arg)
                return (
                    (pairs[:slot] + [changed] + pairs[slot + 1 :], True) if reads and new_arg != arg else (pairs, False)
                )
            number += 1
    return pairs, False


def random_pairs(settings: Settings, count: int) -> list[Pairs]:
    source = random.Random(0)
    ops = [*range(44), *BAD_OPCODES]
    args = [*range(settings.args), *BAD_ARGS]
    return [[(source.choice(ops), source.choice(args)) for _ in range(settings.slots)] for _ in range(count)]


@pytest.mark.parametrize("settings", SIZES, ids=str)
def test_every_action_on_random_programs(settings: Settings) -> None:
    programs = [[(0, 0)] * settings.slots, *random_pairs(settings, 11)]
    actions = [*range(settings.num_actions), settings.num_actions, settings.num_actions + 1, *OUTSIDE]
    apply = jax.jit(jax.vmap(jax.vmap(lambda p, a: vm.apply_action(p, a, settings), (None, 0)), (0, None)))
    after, valid = apply(stack_programs(programs), jnp.array(actions, jnp.int32))  # [P, N + 7, L], [P, N + 7]
    listed = jax.jit(jax.vmap(lambda p: vm.valid_actions(p, settings)))(stack_programs(programs))  # [P, N]
    for index, pairs in enumerate(programs):
        want, want_valid = zip(*(model(pairs, action, settings) for action in actions), strict=True)
        right = stack_programs(list(want))
        np.testing.assert_array_equal(after.op[index], right.op)
        np.testing.assert_array_equal(after.arg[index], right.arg)
        np.testing.assert_array_equal(valid[index], want_valid)
        np.testing.assert_array_equal(listed[index], want_valid[: settings.num_actions])


def test_number_of_actions_of_the_default_machine() -> None:
    assert Settings().num_actions == 481
    assert vm.valid_actions(vm.blank_program()).shape == (481,)


def test_reads_arg_is_the_instruction_set_of_the_reference() -> None:
    assert vm.OPCODES == reference.NAMES
    assert {name for name, reads in zip(vm.OPCODES, READS_ARG, strict=True) if reads} == reference.READS_ARGUMENT


@pytest.mark.parametrize("settings", SIZES, ids=str)
def test_encode_and_decode_are_inverse(settings: Settings) -> None:
    parts: list[tuple[edits.Kind, int, int]] = [("STOP", 0, 0)]
    for slot in range(settings.slots):
        parts += [("SET_OP", slot, op) for op in range(44)]
        parts += [("SET_ARG", slot, k) for k in range(settings.args)]
    numbers = [edits.encode_action(kind, slot, value, settings) for kind, slot, value in parts]
    assert numbers == list(range(settings.num_actions))
    decoded = edits.decode_action(jnp.arange(settings.num_actions), settings)
    for field, right in (
        (decoded.sets_op, [kind == "SET_OP" for kind, _, _ in parts]),
        (decoded.sets_arg, [kind == "SET_ARG" for kind, _, _ in parts]),
        (decoded.slot, [slot for _, slot, _ in parts]),
        (decoded.value, [value for _, _, value in parts]),
    ):
        np.testing.assert_array_equal(field, right)


def test_actions_outside_the_numbering_decode_to_nothing() -> None:
    decoded = edits.decode_action(jnp.array([481, *OUTSIDE], jnp.int32))
    assert not any(np.asarray(field).any() for field in decoded)


def test_numbers_worked_by_hand() -> None:
    assert edits.encode_action("SET_OP", 0, 0) == 1
    assert edits.encode_action("SET_OP", 3, vm.OPCODES.index("FGT")) == 1 + 3 * 60 + 40
    assert edits.encode_action("SET_ARG", 7, 15) == 480
    assert edits.describe_action(0) == "STOP"
    assert edits.describe_action(221) == "slot 3: opcode = FGT"
    assert edits.describe_action(1 + 3 * 60 + 44 + 5) == "slot 3: argument = 5"


def test_new_opcode_keeps_the_argument_it_reads_and_clears_the_one_it_does_not() -> None:
    program = vm.assemble("ADDI 7")
    kept, _ = vm.apply_action(program, jnp.int32(edits.encode_action("SET_OP", 0, vm.OPCODES.index("MULI"))))
    cleared, _ = vm.apply_action(program, jnp.int32(edits.encode_action("SET_OP", 0, vm.OPCODES.index("NEG"))))
    assert vm.disassemble(kept) == "MULI 7"
    assert (int(cleared.op[0]), int(cleared.arg[0])) == (vm.OPCODES.index("NEG"), 0)


@pytest.mark.parametrize(
    ("kind", "slot", "value", "words"),
    [
        ("SET", 0, 0, "'SET' is no kind of action"),
        ("SET_OP", 8, 0, "slot 8 doesn't exist; use 0 to 7"),
        ("SET_OP", -1, 0, "slot -1 doesn't exist"),
        ("SET_OP", 0, 44, "SET_OP can't write 44; use 0 to 43"),
        ("SET_ARG", 0, 16, "SET_ARG can't write 16; use 0 to 15"),
        ("SET_ARG", 0, -1, "SET_ARG can't write -1"),
    ],
)
def test_encode_refuses(kind: str, slot: int, value: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        edits.encode_action(kind, slot, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [-1, 481])
def test_describe_refuses(action: int) -> None:
    with pytest.raises(ValueError, match=f"action {action} doesn't exist; use 0 to 480"):
        edits.describe_action(action)


def test_one_edit_reaches_every_neighbour_once() -> None:
    """Valid actions other than STOP lead to programs that all differ from each other and from the start."""
    program = stack_programs([random_pairs(Settings(), 1)[0]])
    program = jax.tree.map(lambda x: x[0], program)
    valid = np.flatnonzero(vm.valid_actions(program))[1:]
    after, _ = jax.vmap(vm.apply_action, (None, 0))(program, jnp.asarray(valid, jnp.int32))
    rows = np.concatenate([after.op, after.arg], axis=1)
    assert len(np.unique(rows, axis=0)) == len(valid)
    assert (rows != np.concatenate([program.op, program.arg])).any(axis=1).all()
