"""Candidates for tasks: pure functions of (data seed, split, index), unbatched, made for `jax.jit` and `jax.vmap`.

A candidate is drawn and screened (`screen`: is it well formed, does its behaviour belong to this split?), gets its
examples (`draw_inputs`), is judged on them (`judge`) and gets a start program (`draw_start`). All randomness is
threefry in counter mode: word i of a stream depends on the key and on i only, so nothing depends on batch sizes,
devices, or on how many examples are asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vm.behaviour import HIGHEST, LOWEST, SPLITS, behaviour_hash, probe_outputs, split_of
from vm.edits import apply_action, encode_action
from vm.grammar import FAMILIES, MAX_LENGTH, SIGNATURES, TRIES, WORDS_PER_TRY, draw_program
from vm.isa import OPCODE_OF, READS_ARG
from vm.machine import run
from vm.phrases import FRAMES, PHRASINGS, TRAIN_FRAMES, TRAIN_PHRASINGS
from vm.prompts import PromptPlan
from vm.types import NUM_OPCODES, THREEFRY, Program, Settings, Status, Type, Value, blank_program, values_equal

ACCEPTED = 0
REFUSALS = (
    "accepted",
    "no_proper_program",  # every try had an idle pair, or broke the rule on held-out bigrams
    "wrong_split",  # the behaviour belongs to another split
    "fault",  # the reference faults on an example
    "constant",  # all outputs are equal (so a predicate shows both its values)
    "copies_x",  # all outputs are equal to x
    "needless_instruction",  # the outputs are the same without one of the instructions
    "one_branch",  # a conditional whose outputs are those of one of its branches
    "repeated_behaviour",  # evaluation only: an earlier task of the split does the same
    "no_partner",  # pairs only: no program one word away does
    "ambiguous",  # evaluation only: a program one edit away passes all examples and is not the same
)
REASON = {name: code for code, name in enumerate(REFUSALS)}

STARTS = ("blank", "corrupted", "mixed")
BLANK, CORRUPTED, SOLVED = 0, 1, 2
START_KINDS = (BLANK,) * 4 + (CORRUPTED,) * 3 + (SOLVED,)  # eight starts hold half, three eighths, one eighth
_VARIANTS, _EDITS = 5, 4  # corrupted starts tried, and edits of one at most

_INPUT, _SELECT, _POP = OPCODE_OF["INPUT"], OPCODE_OF["SELECT"], OPCODE_OF["POP"]
_HARD, _PARAPHRASE = SPLITS.index("hard_composition"), SPLITS.index("fresh_paraphrase")
_X_TYPES = np.array([types[0] for types in SIGNATURES], np.int32)
_HAS_Y = np.array([len(types) == 2 for types in SIGNATURES])

# What a task's random words are for.
_PROGRAM_STREAM, _PLAN_STREAM, _EXAMPLE_STREAM, _START_STREAM, _KIND_STREAM, _ORDER_STREAM, PARTNER_STREAM = range(7)


class Candidate(NamedTuple):
    """A program with its prompt: `signature` indexes `SIGNATURES`, `behaviour` is uint32 `[2]` (see `behaviour`)."""

    program: Program
    plan: PromptPlan
    length: jax.Array
    family: jax.Array
    signature: jax.Array
    behaviour: jax.Array


def task_key(seed: jax.Array, split: jax.Array, index: jax.Array | np.ndarray) -> jax.Array:
    """The key of everything about one task."""
    key = jax.random.key(seed, impl=THREEFRY)
    return jax.random.fold_in(jax.random.fold_in(key, split), index)


def random_words(key: jax.Array, count: int) -> jax.Array:
    """Random uint32 `[count]`; the first n do not depend on how many are drawn."""
    blocks = jax.vmap(lambda block: jax.random.key_data(jax.random.fold_in(key, block)))(
        jnp.arange((count + 1) // 2, dtype=jnp.uint32)
    )
    return blocks.reshape(-1)[:count]


def screen(key: jax.Array, split: jax.Array, settings: Settings) -> tuple[Candidate, jax.Array]:
    """Draws a candidate and says whether it is well formed and belongs to the split (index into `SPLITS`).

    Returns:
      The candidate, and the reason to refuse it (int32 `[]`, index into `REFUSALS`; `ACCEPTED` to go on).
    """
    words = random_words(jax.random.fold_in(key, _PROGRAM_STREAM), TRIES * WORDS_PER_TRY)
    draft = draw_program(words.reshape(TRIES, WORDS_PER_TRY), split == _HARD, settings.slots)
    behaviour = behaviour_hash(probe_outputs(draft.program, draft.signature, settings), draft.signature)
    plan = _draw_plan(key, split == _PARAPHRASE, draft.length, draft.signature, settings)
    reason = jnp.where(
        ~draft.proper,
        REASON["no_proper_program"],
        jnp.where(split_of(behaviour) != split, REASON["wrong_split"], ACCEPTED),
    )
    candidate = Candidate(draft.program, plan, draft.length, draft.family, draft.signature, behaviour)
    return candidate, reason.astype(jnp.int32)


def _draw_plan(
    key: jax.Array, held_out: jax.Array, length: jax.Array, signature: jax.Array, settings: Settings
) -> PromptPlan:
    """A frame and a phrasing for every slot, all from train's or all from the held-out ones."""
    words = random_words(jax.random.fold_in(key, _PLAN_STREAM), 1 + settings.slots)
    frames = jnp.where(held_out, len(FRAMES) - TRAIN_FRAMES, TRAIN_FRAMES).astype(jnp.uint32)
    phrasings = jnp.where(held_out, PHRASINGS - TRAIN_PHRASINGS, TRAIN_PHRASINGS).astype(jnp.uint32)
    frame = (words[0] % frames).astype(jnp.int32) + jnp.where(held_out, TRAIN_FRAMES, 0)
    phrasing = (words[1:] % phrasings).astype(jnp.int32) + jnp.where(held_out, TRAIN_PHRASINGS, 0)
    return PromptPlan(frame, phrasing, length, jnp.asarray(_X_TYPES)[signature])


def draw_inputs(key: jax.Array, program: Program, signature: jax.Array, count: int, settings: Settings) -> Value:
    """Inputs of `count` examples, a `Value` with fields `[count, 2]`.

    A third of the numbers are k-1, k or k+1 of an immediate k of the program, the rest uniform in -20..40; lists hold
    1 to W numbers.
    """
    key = jax.random.fold_in(key, _EXAMPLE_STREAM)
    is_immediate = jnp.asarray(READS_ARG)[program.op] & (program.op != _INPUT)  # [L]
    ordinal = jnp.cumsum(is_immediate) - 1  # [L]
    number = jnp.sum(is_immediate).astype(jnp.uint32)
    x_is_list = jnp.asarray(_X_TYPES)[signature] == Type.LIST
    has_y = jnp.asarray(_HAS_Y)[signature]

    def one(example: jax.Array) -> Value:
        words = random_words(jax.random.fold_in(key, example), 2 + settings.width)
        near = (words % 3 == 0) & (number > 0)
        rest = words // 3
        which = (rest // 3 % jnp.maximum(number, 1)).astype(jnp.int32)
        chosen = is_immediate[None, :] & (ordinal[None, :] == which[:, None])  # [2 + W, L]
        close = jnp.sum(jnp.where(chosen, program.arg[None, :], 0), axis=1) + (rest % 3).astype(jnp.int32) - 1
        values = jnp.where(near, close, LOWEST + (rest % (HIGHEST - LOWEST + 1)).astype(jnp.int32))
        x_length = jnp.where(x_is_list, 1 + (words[-1] % settings.width).astype(jnp.int32), 1)
        place = jnp.arange(settings.width, dtype=jnp.int32)
        x = jnp.where(place < x_length, values[: settings.width], 0)
        y = jnp.where((place == 0) & has_y, values[settings.width], 0)
        kinds = jnp.stack([jnp.where(x_is_list, Type.LIST, Type.INT), jnp.where(has_y, Type.INT, Type.EMPTY)])
        lengths = jnp.stack([x_length, has_y.astype(jnp.int32)])
        return Value(kinds.astype(jnp.int32), lengths.astype(jnp.int32), jnp.stack([x, y]))

    return jax.vmap(one)(jnp.arange(count, dtype=jnp.uint32))


def run_all(program: Program, inputs: Value, settings: Settings) -> tuple[Value, jax.Array]:
    """Outputs (`[E]`) and statuses (int32 `[E]`) of one program on examples with inputs `[E, 2]`."""
    result = jax.vmap(lambda value: run(program, value, settings))(inputs)
    return result.output, result.status


def judge(candidate: Candidate, inputs: Value, settings: Settings) -> tuple[Value, jax.Array]:
    """Runs a candidate and its mutilated variants on its examples.

    Args:
      candidate: see `screen`.
      inputs: `[E, 2]`.
      settings: the machine's sizes.

    Returns:
      The targets (`[E]`) and the reason to refuse (see `screen`).
    """
    op, arg = candidate.program
    slot = jnp.arange(settings.slots, dtype=jnp.int32)
    # SELECT works on the whole stack and little follows it (see the grammar), so with NOP in its place the program
    # computes "always a", and with POP "always b". The first is among the variants without one instruction.
    without = jnp.where(slot[None, :] == slot[:MAX_LENGTH, None], 0, op[None, :])  # [7, L]
    always_b = jnp.where(op == _SELECT, _POP, op)
    ops = jnp.concatenate([op[None], always_b[None], without])  # [9, L]
    outputs, statuses = jax.vmap(lambda row: run_all(Program(row, arg), inputs, settings))(ops)  # [9, E]
    targets = jax.tree.map(lambda leaf: leaf[0], outputs)
    same = jax.vmap(lambda output: jnp.all(values_equal(output, targets)))(outputs)  # [9]
    first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), targets)
    x = jax.tree.map(lambda leaf: leaf[:, 0], inputs)
    checks = (
        ("fault", jnp.any(statuses[0] != Status.OK)),
        ("constant", jnp.all(values_equal(targets, first))),
        ("copies_x", jnp.all(values_equal(targets, x))),
        ("needless_instruction", jnp.any(same[2:] & (op[:MAX_LENGTH] != 0))),
        ("one_branch", (candidate.family == FAMILIES.index("conditional")) & same[1]),
    )
    return targets, jnp.select([check for _, check in checks], [REASON[name] for name, _ in checks], ACCEPTED)


def draw_start(
    key: jax.Array,
    candidate: Candidate,
    kind: jax.Array,
    member: jax.Array,
    inputs: Value,
    targets: Value,
    settings: Settings,
) -> Program:
    """The start program: blank, the reference with 1 to 4 wrong edits, or the reference (kinds `BLANK` and so on).

    A corrupted start fails at least one example and isn't blank; where no variant drawn is so, the start is blank.
    `member` (0 or 1) tells the two tasks of a pair apart.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, _START_STREAM), member)
    words = random_words(key, _VARIANTS * (1 + _EDITS))
    reference = candidate.program

    def corrupt(words: jax.Array) -> Program:
        def edit(program: Program, draw: tuple[jax.Array, jax.Array]) -> tuple[Program, None]:
            number, word = draw
            changed = _wrong_edit(program, candidate.length, word, settings)
            wanted = number <= words[0] % _EDITS
            return jax.tree.map(lambda new, old: jnp.where(wanted, new, old), changed, program), None

        return lax.scan(edit, reference, (jnp.arange(_EDITS, dtype=jnp.uint32), words[1:]))[0]

    variants = jax.vmap(corrupt)(words.reshape(_VARIANTS, 1 + _EDITS))  # [V, L]
    outputs, _ = jax.vmap(lambda program: run_all(program, inputs, settings))(variants)  # [V, E]
    solved = jax.vmap(lambda output: jnp.all(values_equal(output, targets)))(outputs)  # [V]
    unfit = solved | jnp.all(variants.op == 0, axis=1)
    blank = blank_program(settings)
    variant = jax.tree.map(lambda leaf: leaf[jnp.argmin(unfit)], variants)
    corrupted = jax.tree.map(lambda new, old: jnp.where(jnp.all(unfit), old, new), variant, blank)
    return jax.tree.map(
        lambda b, c, r: jnp.where(kind == BLANK, b, jnp.where(kind == CORRUPTED, c, r)), blank, corrupted, reference
    )


def draw_kind(key: jax.Array) -> jax.Array:
    """The kind of a training task's start, int32 `[]`: the shares of `START_KINDS`."""
    word = random_words(jax.random.fold_in(key, _KIND_STREAM), 1)[0]
    return jnp.asarray(START_KINDS, jnp.int32)[(word % len(START_KINDS)).astype(jnp.int32)]


def scattered_kind(seed: jax.Array, split: jax.Array, position: jax.Array, paired: jax.Array) -> jax.Array:
    """The kind of the start of an evaluation split's task at this position, int32 `[]`.

    Every 8 consecutive tasks, or 16 where `paired`, hold exactly the shares of `START_KINDS`, in a random order.
    """
    block = jnp.where(paired, 2 * len(START_KINDS), len(START_KINDS)).astype(jnp.uint32)
    key = jax.random.fold_in(task_key(seed, split, position // block), _ORDER_STREAM)
    words = random_words(key, 2 * len(START_KINDS))
    place = jnp.arange(2 * len(START_KINDS), dtype=jnp.uint32)
    mine = position % block
    before = (words < words[mine]) | ((words == words[mine]) & (place < mine))
    rank = jnp.sum(before & (place < block))
    return jnp.asarray(START_KINDS, jnp.int32)[rank % len(START_KINDS)]


def _wrong_edit(program: Program, length: jax.Array, word: jax.Array, settings: Settings) -> Program:
    """One random valid edit, in seven of eight cases of a slot that the reference uses."""
    anywhere = (word & 7) == 0
    slots = jnp.where(anywhere, settings.slots, length).astype(jnp.uint32)
    slot = ((word >> 3) % slots).astype(jnp.int32)
    rest = word >> 8
    old_op, old_arg = program.op[slot], program.arg[slot]
    new_op = (old_op + 1 + (rest % (NUM_OPCODES - 1)).astype(jnp.int32)) % NUM_OPCODES
    new_arg = (old_arg + 1 + (rest % (settings.args - 1)).astype(jnp.int32)) % settings.args
    sets_arg = jnp.asarray(READS_ARG)[old_op] & ((word >> 6 & 1) == 1)
    field = jnp.where(sets_arg, encode_action("SET_ARG") + new_arg, encode_action("SET_OP") + new_op)
    return apply_action(program, field + slot * (NUM_OPCODES + settings.args), settings)[0]
