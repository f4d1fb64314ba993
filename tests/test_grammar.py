"""Random programs: well typed, of the family they say, and without the neighbours that their split excludes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vm import grammar, reference
from vm.isa import OPCODES, READS_ARG
from vm.types import Type

SLOTS = 8
COUNT = 4000
X = {Type.INT: [-7, 0, 5, 33], Type.LIST: [[3, -4, 8, 8, 15, 2, 40, -20], [6], [0, 1], [9, 9, 2]]}
Y = [4, -3, 11, 1]


@pytest.fixture(scope="module", params=[False, True], ids=["standard", "hard"])
def drafts(request):
    def draw(key):
        words = jax.random.bits(key, (grammar.TRIES, grammar.WORDS_PER_TRY), jnp.uint32)
        return grammar.draw_program(words, jnp.bool_(request.param), SLOTS)

    keys = jax.random.split(jax.random.key(3, impl="threefry2x32"), COUNT)
    return request.param, jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(keys))


def instructions(drafts, row):
    return list(zip(drafts.program.op[row].tolist(), drafts.program.arg[row].tolist(), strict=True))


def names(drafts, row):
    return [OPCODES[op] for op, _ in instructions(drafts, row) if op]


def test_programs_fill_the_first_slots_and_the_rest_is_blank(drafts):
    hard, drafts = drafts
    used = drafts.program.op > 0
    np.testing.assert_array_equal(used, np.arange(SLOTS)[None] < drafts.length[:, None])
    assert set(np.unique(drafts.length)) == ({6, 7} if hard else {1, 2, 3, 4, 5})
    assert not np.any(drafts.program.arg[~READS_ARG[drafts.program.op]])


def test_arguments_stay_in_their_ranges_and_reach_both_ends(drafts):
    _, drafts = drafts
    for opcode in np.flatnonzero(READS_ARG):
        low, high = grammar.ARGUMENT_RANGES.get(OPCODES[opcode], (0, 15))
        seen = np.unique(drafts.program.arg[drafts.program.op == opcode])
        if OPCODES[opcode] == "INPUT":
            low, high = 0, 1
        assert (seen.min(), seen.max()) == (low, high)


def test_programs_are_well_typed_and_end_with_one_value_of_their_family(drafts):
    _, drafts = drafts
    for row in range(300):
        types = grammar.SIGNATURES[drafts.signature[row]]
        for x, y in zip(X[types[0]], Y, strict=True):
            inputs = [x, y] if len(types) == 2 else [x, None]
            pairs = instructions(drafts, row)
            _, status, pc = reference.run(pairs, inputs)
            assert status in (reference.OK, reference.DIVISION_BY_ZERO, reference.EMPTY_LIST)
            if status == reference.OK:
                depth_probe = [*pairs[: drafts.length[row]], (OPCODES.index("POP"), 0)]
                assert reference.run(depth_probe, inputs)[0][0] == reference.EMPTY
                kind = reference.run(pairs, inputs)[0][0]
                assert grammar.FAMILIES[drafts.family[row]] == family_by_hand(names(drafts, row), types, kind)


def family_by_hand(used, types, kind):
    if "SELECT" in used:
        return "conditional"
    if kind == reference.BOOL:
        return "predicate"
    if kind == reference.LIST:
        return "list_pipeline"
    if types[0] is Type.LIST:
        return "list_reduction"
    return "arithmetic_two" if len(types) == 2 else "arithmetic_one"


def test_y_is_pushed_exactly_where_there_is_one(drafts):
    _, drafts = drafts
    pushes_y = np.any((drafts.program.op == OPCODES.index("INPUT")) & (drafts.program.arg == 1), axis=1)
    np.testing.assert_array_equal(pushes_y, drafts.signature >= 2)


def test_neighbours_obey_the_rules_of_the_split(drafts):
    hard, drafts = drafts
    assert drafts.proper.mean() > (0.7 if hard else 0.98)
    for row in range(0, COUNT, 4):
        ops = [op for op, _ in instructions(drafts, row) if op]
        neighbours = list(itertools.pairwise(ops))
        idle = any(grammar.IDLE_PAIRS[pair] for pair in neighbours)
        held_out = any(grammar.HELD_OUT_PAIRS[pair] for pair in neighbours)
        assert bool(drafts.proper[row]) == (not idle and held_out == hard)


def test_every_opcode_and_every_family_occurs(drafts):
    _, drafts = drafts
    assert set(np.unique(drafts.program.op[drafts.proper])) == set(range(len(OPCODES)))
    assert set(np.unique(drafts.family[drafts.proper])) == set(range(len(grammar.FAMILIES)))


def test_no_opcode_is_starved_of_neighbours_by_the_held_out_bigrams():
    possible = np.zeros((len(OPCODES), len(OPCODES)), bool)
    code = {name: number for number, name in enumerate(OPCODES)}
    for first, second in itertools.product(grammar.MOVES, repeat=2):
        stack = first.results
        if all(a == b or Type.EMPTY in (a, b) for a, b in zip(stack, second.operands, strict=False)):
            possible[np.ix_([code[n] for n in first.opcodes], [code[n] for n in second.opcodes])] = True
    possible &= ~grammar.IDLE_PAIRS
    kept = possible & ~grammar.HELD_OUT_PAIRS
    shares = [kept.sum(axis)[1:] / np.maximum(possible.sum(axis)[1:], 1) for axis in (0, 1)]
    assert all(share.min() >= 0.5 for share in shares)
    assert 0.05 < grammar.HELD_OUT_PAIRS[possible].mean() < 0.2


def test_the_walk_tables_count_every_weighted_program():
    """Brute force over all sequences of moves of up to 3 instructions, on plain stacks."""

    def follow(stack, x_type, move):
        if stack[: len(move.operands)] != move.operands:
            return None
        results = tuple(x_type if cell is Type.EMPTY else cell for cell in move.results)
        after = results + stack[len(move.operands) :]
        return after if len(after) <= 4 else None

    for goal_number, goal in enumerate(grammar.GOALS):
        types = grammar.SIGNATURES[goal.signature]
        if goal.family == "conditional":  # needs 4 instructions
            continue
        for length in (1, 2, 3):
            total = 0.0
            for moves in itertools.product(grammar.MOVES, repeat=length):
                stack, weight = (types[0],), 1.0
                for move in moves:
                    stack = (
                        follow(stack, types[0], move) if stack is not None and "SELECT" not in move.opcodes else None
                    )
                    weight *= move.weight
                pushes_y = any(move.opcodes == ("INPUT",) and move.arg == 1 for move in moves)
                if stack == (goal.output,) and pushes_y == (len(types) == 2):
                    total += weight
            start = 0 if types[0] is Type.INT else 1
            assert grammar._WAYS[goal_number, length, start] == pytest.approx(total)
