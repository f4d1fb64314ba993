"""Random well-typed programs: walks on the automaton of stack types that end with one value of the wanted type.

A state is what the stack holds (types only), whether y was pushed, and whether a SELECT ran. A move is a class of
opcodes that change the state alike ("list to number"). For every goal (a family on a signature of inputs) and every
number of instructions left, a table gives each move's share of the weighted ways to reach the goal, so a walk never
gets stuck, and programs of one goal and length come with probability proportional to the product of their moves'
weights. The tables are made with numpy at import; drawing is integer arithmetic on random words, the same everywhere.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vm.isa import OPCODE_OF, OPCODES, READS_ARG
from vm.types import MAX_STACK, Program, Type

FAMILIES = ("arithmetic_one", "arithmetic_two", "predicate", "list_pipeline", "list_reduction", "conditional")
SIGNATURES = ((Type.INT,), (Type.LIST,), (Type.INT, Type.INT), (Type.LIST, Type.INT))  # types of x, and of y if any
MAX_LENGTH = 7
TRIES = 8  # programs drawn for one candidate; the first that obeys the rules on neighbouring opcodes is taken
WORDS_PER_TRY = 1 + MAX_LENGTH

_I, _B, _L = Type.INT, Type.BOOL, Type.LIST
_NUMBER_MAPS = ("ADDI", "SUBI", "MULI", "DIVI", "MODI", "NEG", "ABS")


class Move(NamedTuple):
    """Opcodes that change the types on the stack alike. Operands and results are listed from the top down."""

    opcodes: tuple[str, ...]
    operands: tuple[Type, ...]
    results: tuple[Type, ...]
    weight: float
    arg: int | None = None  # fixed argument; None draws it from the opcode's range


MOVES: tuple[Move, ...] = (
    Move(_NUMBER_MAPS, (_I,), (_I,), 5.0),
    Move(_NUMBER_MAPS, (_L,), (_L,), 4.0),
    Move(("SORT", "REV", "TAKE", "DROP", "FGT", "FLT", "FEVEN"), (_L,), (_L,), 6.0),
    Move(("LEN", "SUM", "MAXL", "MINL", "HEAD", "LAST"), (_L,), (_I,), 5.0),
    Move(("ADD", "SUB", "MUL", "DIV", "MOD", "MIN", "MAX"), (_I, _I), (_I,), 5.0),
    Move(("EQI", "LTI", "GTI", "EVEN"), (_I,), (_B,), 5.0),
    Move(("EQ", "LT", "GT"), (_I, _I), (_B,), 4.0),
    Move(("NOT",), (_B,), (_B,), 2.0),
    Move(("AND", "OR"), (_B, _B), (_B,), 20.0),
    Move(("INPUT",), (), (Type.EMPTY,), 1.5, arg=0),  # EMPTY stands for the type of x
    Move(("INPUT",), (), (_I,), 3.0, arg=1),
    Move(("CONST",), (), (_I,), 1.0),
    Move(("DUP",), (_I,), (_I, _I), 1.0),
    Move(("DUP",), (_L,), (_L, _L), 1.5),
    *(Move(("SWAP",), (a, b), (b, a), 0.8) for a, b in itertools.product((_I, _B, _L), repeat=2)),
    *(Move(("POP",), (a,), (), 1.0) for a in (_I, _B, _L)),
    *(Move(("SELECT",), (a, a, _B), (a,), 30.0) for a in (_I, _B, _L)),
)

# Arguments that make sense, lowest and highest; opcodes that are not named take 0..15.
ARGUMENT_RANGES = {
    "ADDI": (1, 15),
    "SUBI": (1, 15),
    "MULI": (2, 15),
    "DIVI": (2, 15),
    "MODI": (2, 15),
    "TAKE": (1, 7),
    "DROP": (1, 7),
}


class Goal(NamedTuple):
    """A family on one signature, with the type of the output and its share of the programs."""

    family: str
    signature: int
    output: Type
    weight: float


GOALS: tuple[Goal, ...] = (
    Goal("arithmetic_one", 0, _I, 14.0),
    Goal("arithmetic_two", 2, _I, 16.0),
    *(Goal("predicate", signature, _B, weight) for signature, weight in ((0, 6.0), (1, 10.0), (2, 6.0), (3, 6.0))),
    Goal("list_pipeline", 1, _L, 20.0),
    Goal("list_reduction", 1, _I, 12.0),
    Goal("list_reduction", 3, _I, 7.0),
    *(Goal("conditional", s, out, 4.0) for s, out in itertools.product(range(4), (_I, _B))),
    *(Goal("conditional", s, _L, 5.0) for s in (1, 3)),
)

# Share of each length before refusals: 1 to 5 instructions, and 6 or 7 in `hard_composition`.
LENGTH_WEIGHTS = ({1: 1.5, 2: 6.0, 3: 22.0, 4: 33.0, 5: 37.5}, {6: 1.0, 7: 1.0})


class State(NamedTuple):
    """What a walk knows: the type of x, the types on the stack from the top down, y pushed, SELECT done."""

    x_type: Type
    stack: tuple[Type, ...]
    y_pushed: bool
    selected: bool


class Draft(NamedTuple):
    """A drawn program: `program` int32 `[L]`, its `length`, `family`, `signature`, and whether it obeys the rules.

    `proper` is false where none of the tries obeyed the rules on neighbouring opcodes.
    """

    program: Program
    length: jax.Array
    family: jax.Array
    signature: jax.Array
    proper: jax.Array


def _follow(state: State, move: Move) -> State | None:
    """The state after a move, or None where the move is impossible or of no use."""
    taken = len(move.operands)
    if state.stack[:taken] != move.operands:
        return None
    selects, pushes_y = "SELECT" in move.opcodes, move.opcodes == ("INPUT",) and move.arg == 1
    # SELECT takes the whole stack and at most one cell is pushed on top of its result. So with NOP or POP in SELECT's
    # place the rest of the program computes exactly "always a" or "always b", above cells that nothing reaches.
    if selects and len(state.stack) != taken:
        return None
    results = tuple(state.x_type if cell is Type.EMPTY else cell for cell in move.results)
    stack = results + state.stack[taken:]
    selected = state.selected or selects
    if len(stack) > (2 if selected else MAX_STACK):
        return None
    return State(state.x_type, stack, state.y_pushed or pushes_y, selected)


def _automaton() -> tuple[list[State], np.ndarray]:
    """All reachable states, the four starts first, and the next state of each move, int32 `[S, M]` (-1: none)."""
    starts = [State(types[0], (types[0],), False, False) for types in SIGNATURES[:2]]
    states, rows = list(starts), []
    index = {state: number for number, state in enumerate(states)}
    for state in states:  # grows while it is walked
        row = []
        for move in MOVES:
            after = _follow(state, move)
            if after is not None and after not in index:
                index[after] = len(states)
                states.append(after)
            row.append(-1 if after is None else index[after])
        rows.append(row)
    return states, np.array(rows, np.int32)


def _reached(goal: Goal, state: State) -> bool:
    """Whether a program may end here: one value of the goal's type, y used where there is one, SELECT where asked."""
    types = SIGNATURES[goal.signature]
    return (
        state.x_type == types[0]
        and state.stack == (goal.output,)
        and state.y_pushed == (len(types) == 2)
        and state.selected == (goal.family == "conditional")
    )


def _choices(states: list[State], following: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cumulative shares of the moves in 1/65536, int32 `[G, R, S, M]`, and the weighted number of ways `[G, R, S]`."""
    weights = np.array([move.weight for move in MOVES])  # [M]
    ways = np.zeros((len(GOALS), MAX_LENGTH + 1, len(states)))
    shares = np.zeros((len(GOALS), MAX_LENGTH + 1, len(states), len(MOVES)))
    ways[:, 0] = [[_reached(goal, state) for state in states] for goal in GOALS]
    for left in range(1, MAX_LENGTH + 1):
        shares[:, left] = np.where(following >= 0, ways[:, left - 1][:, following], 0.0) * weights
        ways[:, left] = shares[:, left].sum(axis=-1)
    total = np.maximum(ways, np.finfo(float).tiny)[..., None]
    return np.round(np.cumsum(shares, axis=-1) / total * 65536).astype(np.int32), ways


def _outlines(ways: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cumulative shares in 1/65536 of every (length, goal), `[2, P]` for standard and hard, and the pairs `[P]`."""
    pairs = list(itertools.product(range(1, MAX_LENGTH + 1), range(len(GOALS))))
    shares = np.zeros((2, len(pairs)))
    for mode, lengths in enumerate(LENGTH_WEIGHTS):
        for length, weight in lengths.items():
            row = np.array(
                [
                    goal.weight * (ways[g, length, int(SIGNATURES[goal.signature][0] == _L)] > 0)
                    for g, goal in enumerate(GOALS)
                ]
            )
            shares[mode, (length - 1) * len(GOALS) : length * len(GOALS)] = weight * row / row.sum()
    cumulative = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)
    length_of, goal_of = np.array(pairs, np.int32).T
    return np.round(cumulative * 65536).astype(np.int32), length_of, goal_of


def _codes(text: str) -> list[int]:
    return [OPCODE_OF[name] for name in text.split()]


def _idle_pairs() -> np.ndarray:
    """Neighbours that are not worth drawing, bool `[44, 44]`: one undoes or hides the other, or both fold into one.

    POP is left after SWAP only ("drop the value below"): right after any other instruction it would be dead code.
    """
    maps, reductions = _codes(" ".join(_NUMBER_MAPS)), _codes("LEN SUM MAXL MINL")
    everything = [code for code in range(len(OPCODES)) if code != OPCODE_OF["SWAP"]]
    rules = [
        (everything, _codes("POP")),
        (_codes("SWAP"), _codes("SWAP ADD MUL MIN MAX EQ AND OR")),
        (_codes("DUP"), _codes("SWAP MIN MAX EQ LT GT SUB DIV MOD AND OR SELECT")),
        (_codes("NEG"), _codes("NEG ABS EVEN")),
        (_codes("ABS"), _codes("ABS EVEN")),
        (_codes("NOT"), _codes("NOT")),
        (_codes("SORT REV"), [*reductions, *_codes("SORT")]),
        (_codes("REV"), _codes("REV")),
        (maps, _codes("LEN")),
        (_codes("CONST"), _codes("ADDI SUBI MULI DIVI MODI ABS EQI LTI GTI EVEN DUP")),
    ]
    table = np.zeros((len(OPCODES), len(OPCODES)), bool)
    for firsts, seconds in rules:
        table[np.ix_(firsts, seconds)] = True
    for name in ("TAKE", "FGT", "FLT", "FEVEN"):
        table[OPCODE_OF[name], OPCODE_OF[name]] = True
    return table


def _held_out_pairs() -> np.ndarray:
    """The bigrams kept for `hard_composition`, bool `[44, 44]`: one in eight, picked by an integer hash.

    Pairs of two opcodes that are alone in their class (pushes, SWAP, SELECT) stay in train, so that no kind of
    program disappears from it.
    """
    pair = np.arange(len(OPCODES) ** 2, dtype=np.uint32).reshape(len(OPCODES), len(OPCODES))
    mixed = (pair + np.uint32(1)) * np.uint32(0x9E3779B1)
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x85EBCA77)
    table = (mixed >> np.uint32(13)) % 8 == 0
    structural = _codes("NOP INPUT CONST DUP SWAP POP SELECT NOT")
    table[np.ix_(structural, structural)] = False
    table[0] = table[:, 0] = False
    return table


_STATES, _NEXT = _automaton()
_CHOICE, _WAYS = _choices(_STATES, _NEXT)
_OUTLINE, _LENGTH_OF, _GOAL_OF = _outlines(_WAYS)
IDLE_PAIRS = _idle_pairs()
HELD_OUT_PAIRS = _held_out_pairs()
GOAL_FAMILY = np.array([FAMILIES.index(goal.family) for goal in GOALS], np.int32)
GOAL_SIGNATURE = np.array([goal.signature for goal in GOALS], np.int32)
_START_OF = np.array([int(SIGNATURES[goal.signature][0] == _L) for goal in GOALS], np.int32)
_MEMBERS = np.zeros((len(MOVES), max(len(move.opcodes) for move in MOVES)), np.int32)
for _number, _move in enumerate(MOVES):
    _MEMBERS[_number, : len(_move.opcodes)] = _codes(" ".join(_move.opcodes))
_MEMBER_COUNT = np.array([len(move.opcodes) for move in MOVES], np.uint32)
_FIXED_ARG = np.array([-1 if move.arg is None else move.arg for move in MOVES], np.int32)
ARGUMENT_LOW = np.array([ARGUMENT_RANGES.get(name, (0, 15))[0] for name in OPCODES], np.int32)
ARGUMENT_HIGH = np.array([ARGUMENT_RANGES.get(name, (0, 15))[1] for name in OPCODES], np.int32)


def obeys(op: jax.Array, hard: jax.Array) -> jax.Array:
    """Whether the instructions `op` int32 `[L]` (NOP after the last) may stand side by side: bool `[]`.

    No pair may be idle. `hard` programs hold at least one held-out bigram, all others none.
    """
    first, second = op[:-1], op[1:]
    used = second > 0
    idle = jnp.any(jnp.asarray(IDLE_PAIRS)[first, second] & used)
    held_out = jnp.any(jnp.asarray(HELD_OUT_PAIRS)[first, second] & used)
    return ~idle & (held_out == hard)


def draw_argument(op: jax.Array, word: jax.Array) -> jax.Array:
    """An argument in the opcode's range from a random word (uint32 of 12 bits or more)."""
    low, high = jnp.asarray(ARGUMENT_LOW)[op], jnp.asarray(ARGUMENT_HIGH)[op]
    return low + (word % (high - low + 1).astype(jnp.uint32)).astype(jnp.int32)


def draw_program(words: jax.Array, hard: jax.Array, slots: int) -> Draft:
    """Draws a program laid out from slot 0.

    Args:
      words: random uint32 `[TRIES, WORDS_PER_TRY]`.
      hard: bool `[]`, whether to draw 6 or 7 instructions with a held-out bigram (see `obeys`).
      slots: L, at least `MAX_LENGTH`.
    """
    tries = jax.vmap(lambda row: _walk(row, hard, slots))(words)  # [TRIES, ...]
    pick = jnp.argmax(tries.proper)  # the first that obeys, or try 0
    return jax.tree.map(lambda leaf: leaf[pick], tries)


def _walk(words: jax.Array, hard: jax.Array, slots: int) -> Draft:
    """One try: the length and the goal from the first word, then one instruction from each."""
    outline = jnp.asarray(_OUTLINE)[hard.astype(jnp.int32)]  # [P]
    pair = jnp.sum((words[0] >> 16).astype(jnp.int32) >= outline)
    length, goal = jnp.asarray(_LENGTH_OF)[pair], jnp.asarray(_GOAL_OF)[pair]

    def step(state: jax.Array, draw: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Program]:
        number, word = draw
        high, low = (word >> 16).astype(jnp.int32), word & 0xFFFF
        left = length - number
        choice = jnp.asarray(_CHOICE)[goal, jnp.maximum(left, 0), state]  # [M]
        move = jnp.minimum(jnp.sum(high >= choice), len(MOVES) - 1)
        count = jnp.asarray(_MEMBER_COUNT)[move]
        op = jnp.asarray(_MEMBERS)[move, (low % count).astype(jnp.int32)]
        fixed = jnp.asarray(_FIXED_ARG)[move]
        arg = jnp.where(fixed >= 0, fixed, draw_argument(op, low // count) * jnp.asarray(READS_ARG)[op])
        goes_on = left > 0
        after = jnp.where(goes_on, jnp.asarray(_NEXT)[state, move], state)
        return after, Program(jnp.where(goes_on, op, 0), jnp.where(goes_on, arg, 0))

    numbers = jnp.arange(MAX_LENGTH, dtype=jnp.int32)
    _, program = lax.scan(step, jnp.asarray(_START_OF)[goal], (numbers, words[1:]))  # [MAX_LENGTH]
    program = jax.tree.map(lambda field: jnp.pad(field, (0, slots - MAX_LENGTH)), program)
    family, signature = jnp.asarray(GOAL_FAMILY)[goal], jnp.asarray(GOAL_SIGNATURE)[goal]
    return Draft(program, length, family, signature, obeys(program.op, hard))
