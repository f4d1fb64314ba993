"""The oracle against breadth-first search over the edits themselves, in plain Python."""

import itertools
from collections import deque

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import vm
from vm import oracle

# Opcodes that read their argument, written out from the instruction table rather than taken from the code under test.
READS = {1, 2, 13, 14, 15, 16, 17, 23, 24, 25, 38, 39, 40, 41}
OPS, ARGS = range(44), range(16)
NOP = (0, 0)


def edits_of(slot):
    """All valid edits of one slot: (field, value) -> slot after it."""
    op, arg = slot
    after = {("op", o): (o, arg if o in READS else 0) for o in OPS if o != op}
    if op in READS:
        after |= {("arg", a): (op, a) for a in ARGS if a != arg}
    return after


def distances_to(want):
    """Edits from every slot to one that acts as `want`, by breadth-first search from all slots at once, backwards."""
    slots = [(o, a) for o in OPS for a in (ARGS if o in READS else [0])]
    before = {slot: [] for slot in slots}
    for slot in slots:
        for after in edits_of(slot).values():
            before[after].append(slot)
    found, queue = {want: 0}, deque([want])
    while queue:
        slot = queue.popleft()
        for earlier in before[slot]:
            if earlier not in found:
                found[earlier] = found[slot] + 1
                queue.append(earlier)
    return found


def right_fields(slot, want):
    """Fields of a slot that are as wanted; an argument is a field only where both opcodes read it."""
    return (slot[0] == want[0]) + (slot[0] in READS and want[0] in READS and slot[1] == want[1])


def teacher_of(slot, want, found):
    """Optimal edits of a slot that make one more of its fields right."""
    return {
        edit
        for edit, after in edits_of(slot).items()
        if found[after] == found[slot] - 1 and right_fields(after, want) > right_fields(slot, want)
    }


WANTED = [NOP, (6, 0), (1, 1), (2, 0), (2, 7), (15, 3), (40, 15)]
FOUND = {want: distances_to(want) for want in WANTED}
slots = st.sampled_from(sorted(FOUND[NOP]))


def program(rows):
    return vm.Program(*(jnp.array(column, jnp.int32) for column in zip(*rows, strict=True)))


def action_index(slot, edit, settings):
    field, value = edit
    return 1 + slot * (44 + settings.args) + (value if field == "op" else 44 + value)


def test_every_slot_against_every_wanted_instruction():
    """One slot, exhaustively: 241 slots by 7 instructions."""
    settings = vm.Settings(slots=1)
    ask = jax.jit(jax.vmap(lambda p, r: oracle.distance(p, r, settings)))
    for want, found in FOUND.items():
        rows = sorted(found)
        batch = vm.Program(*(jnp.array(column, jnp.int32)[:, None] for column in zip(*rows, strict=True)))
        reference = vm.Program(*(jnp.full((len(rows), 1), number, jnp.int32) for number in want))
        said = ask(batch, reference)
        np.testing.assert_array_equal(said.distance, [found[slot] for slot in rows])
        for row, slot in enumerate(rows):
            expected = {action_index(0, edit, settings) for edit in teacher_of(slot, want, found)}
            assert set(np.flatnonzero(said.teacher[row])) == expected, (slot, want)


SMALL = vm.Settings(slots=4)
ask_first = jax.jit(lambda p, r: oracle.distance(p, r, SMALL))
repair_small = jax.jit(lambda p, r, key: oracle.repair(p, r, key, 8, SMALL))
ask_nearest = jax.jit(lambda p, r, n: oracle.distance(p, r, SMALL, "nearest", n))
ask_leftmost = jax.jit(lambda p, r, n: oracle.distance(p, r, SMALL, "leftmost", n))


@hypothesis_settings(max_examples=150, deadline=None)
@given(st.lists(slots, min_size=4, max_size=4), st.lists(st.sampled_from(WANTED[1:]), min_size=1, max_size=4))
def test_nearest_placement_is_the_best_of_all_placements(rows, wanted):
    best, teacher, leftmost, of_leftmost = 99, set(), 99, set()
    for places in itertools.combinations(range(4), len(wanted)):
        layout = [NOP] * 4
        for place, instruction in zip(places, wanted, strict=True):
            layout[place] = instruction
        cost = sum(FOUND[want][slot] for slot, want in zip(rows, layout, strict=True))
        helpful = {
            action_index(s, edit, SMALL)
            for s, (slot, want) in enumerate(zip(rows, layout, strict=True))
            for edit in teacher_of(slot, want, FOUND[want])
        }
        if cost < best:
            best, teacher, leftmost = cost, set(), 99
        if cost == best:
            teacher |= helpful
            if sum(places) < leftmost:
                leftmost, of_leftmost = sum(places), set()
            if sum(places) == leftmost:
                of_leftmost |= helpful
    reference = program(wanted + [NOP] * (4 - len(wanted)))
    said = ask_nearest(program(rows), reference, jnp.int32(len(wanted)))
    assert int(said.distance) == best
    assert set(np.flatnonzero(said.teacher)) == teacher
    said = ask_leftmost(program(rows), reference, jnp.int32(len(wanted)))
    assert int(said.distance) == best
    assert set(np.flatnonzero(said.teacher)) == of_leftmost
    first = ask_first(program(rows), reference)
    layout = wanted + [NOP] * (4 - len(wanted))
    assert int(first.distance) == sum(FOUND[want][slot] for slot, want in zip(rows, layout, strict=True)) >= best


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.lists(slots, min_size=4, max_size=4),
    st.lists(st.sampled_from(WANTED), min_size=4, max_size=4),
    st.integers(0, 99),
)
def test_repair_reaches_the_reference_in_exactly_its_distance(rows, wanted, seed):
    path = repair_small(program(rows), program(wanted), jax.random.key(seed))
    total = int(path.distance)
    steps = [jax.tree.map(lambda x, t=t: x[t], path.programs) for t in range(9)]
    left = [int(ask_first(step, program(wanted)).distance) for step in steps]
    assert left == [max(total - t, 0) for t in range(9)]
    assert np.count_nonzero(path.actions) == total


def test_bad_opcodes_and_arguments_can_be_repaired():
    rows = [(44, 3), (-1, 0), (2, 99), (13, -5)]
    wanted = [(2, 7), (6, 0), (2, 7), (6, 0)]
    said = ask_first(program(rows), program(wanted))
    assert int(said.distance) == 2 + 1 + 1 + 1
    marked = {(0, ("op", 2)), (1, ("op", 6)), (2, ("arg", 7)), (3, ("op", 6))}
    assert set(np.flatnonzero(said.teacher)) == {action_index(s, edit, SMALL) for s, edit in marked}


def test_detour_that_clears_an_argument_is_no_teacher():
    """From FGT 5 to CONST 0, NOP first would clear the argument at no extra cost, and teaches nothing."""
    said = jax.jit(lambda p, r: oracle.distance(p, r, vm.Settings(slots=1)))(program([(40, 5)]), program([(2, 0)]))
    assert int(said.distance) == 2
    assert set(np.flatnonzero(said.teacher)) == {1 + 2, 1 + 44 + 0}


def test_a_blank_program_is_filled_from_the_left():
    """Anywhere is as near as anywhere else; the leftmost places are the first two slots, in either order."""
    reference = program([(6, 0), (1, 1), (0, 0), (0, 0)])
    said = ask_leftmost(vm.blank_program(SMALL), reference, jnp.int32(2))
    assert int(said.distance) == 3
    assert set(np.flatnonzero(said.teacher)) == {action_index(0, ("op", 6), SMALL), action_index(1, ("op", 1), SMALL)}


@pytest.mark.parametrize("placement", ["nearest", "leftmost"])
def test_a_free_placement_needs_a_length(placement):
    with pytest.raises(ValueError, match=f"{placement}.*length"):
        oracle.distance(vm.blank_program(), vm.blank_program(), placement=placement)


def test_one_compilation():
    ask = jax.jit(chex.assert_max_traces(lambda p, r: oracle.distance(p, r), n=1))
    for op in (3, 4):
        ask(vm.blank_program(), vm.blank_program()._replace(op=jnp.full(8, op, jnp.int32)))
