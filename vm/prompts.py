"""Prompts: a plan of phrasings and a program make one sentence, as text on the host or as token ids inside jit.

A prompt is a chain of fragments: the frame's start, then for each instruction a connector (but not before the first),
the words before its argument, the argument, the words after it, and the frame's end. `render_text` joins their texts,
`render_tokens` their token ids. Reading a prompt decides the program and the type of x: phrases of different opcodes
are never equal, and no connector occurs inside a phrase.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from vm.isa import OPCODES, READS_ARG
from vm.phrases import FRAMES, INPUT_NAMES, PHRASES, PHRASINGS
from vm.types import Program, Type

Encode = Callable[[str], Sequence[int]]

KINDS = {int(Type.INT): "number", int(Type.LIST): "list"}  # what a frame calls x
NUM_ARGS = 16
INPUT = OPCODES.index("INPUT")
NUM_OPCODES = len(OPCODES)

# Where each kind of fragment begins in the list of all fragments.
EMPTY_FRAGMENT = 0
STARTS = 1  # [frame, kind] with kind 0 for a number and 1 for a list
CONNECTORS = STARTS + 2 * len(FRAMES)  # [frame]
ENDS = CONNECTORS + len(FRAMES)  # [frame]
NUMBERS = ENDS + len(FRAMES)  # [arg]
NAMES = NUMBERS + NUM_ARGS  # [arg]: INPUT's arguments, x and y
PREFIXES = NAMES + len(INPUT_NAMES)  # [opcode, phrasing]: the words before the argument
SUFFIXES = PREFIXES + NUM_OPCODES * PHRASINGS  # [opcode, phrasing]: the words after it


class PromptPlan(NamedTuple):
    """Which words a prompt uses; the instructions come from the reference program.

    Attributes:
      frame: int32 `[...]`, index into `FRAMES`.
      phrasing: int32 `[..., L]`, index into the phrasings of each slot's opcode; ignored past `length`.
      length: int32 `[...]`, number of instructions; they fill the slots from 0.
      x_type: int32 `[...]`, type code of x (INT or LIST), which the frame states.
    """

    frame: jax.Array
    phrasing: jax.Array
    length: jax.Array
    x_type: jax.Array


class TokenTable(NamedTuple):
    """Token ids of every fragment: `ids` int32 `[F, M]` padded with zeros, and their number, `lengths` int32 `[F]`."""

    ids: jax.Array
    lengths: jax.Array


def phrase(opcode: int, arg: int, phrasing: int) -> str:
    """The words of one instruction.

    Raises:
      ValueError: for NOP and bad opcodes, and for an input without a name; a prompt can't ask for those.
    """
    if not 0 < opcode < NUM_OPCODES:
        raise ValueError(f"opcode {opcode} has no phrase; use an opcode between 1 and {NUM_OPCODES - 1}.")
    if opcode == INPUT and not 0 <= arg < len(INPUT_NAMES):
        raise ValueError(f"INPUT {arg} has no name; a task's inputs are 0 (x) and 1 (y).")
    name = INPUT_NAMES[arg] if opcode == INPUT else str(arg)
    return PHRASES[OPCODES[opcode]][phrasing].format(k=name)


def render_text(plan: PromptPlan, program: Program) -> str:
    """The prompt of one task as text, from unbatched arrays (see `PromptPlan`)."""
    frame = FRAMES[int(plan.frame)]
    ops, args, phrasings = np.asarray(program.op), np.asarray(program.arg), np.asarray(plan.phrasing)
    phrases = [phrase(int(ops[s]), int(args[s]), int(phrasings[s])) for s in range(int(plan.length))]
    start = frame.start.format(kind=KINDS[int(plan.x_type)])
    return f"{start} " + f"{frame.connector} ".join(phrases) + frame.end


def words(text: str) -> list[str]:
    """The words, numbers and punctuation marks of a text, in order: what a word-level tokenizer sees."""
    return re.findall(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]", text)


def vocabulary() -> list[str]:
    """Every word, number and punctuation mark of every prompt, sorted."""
    return sorted({word for fragment in fragments() for word in words(fragment)})


def fragments() -> list[str]:
    """The texts of all fragments, in the order of the module's offsets. All but a start bring their leading space."""
    texts = [""]
    texts += [frame.start.format(kind=kind) for frame in FRAMES for kind in KINDS.values()]
    texts += [frame.connector for frame in FRAMES]
    texts += [frame.end for frame in FRAMES]
    texts += [f" {number}" for number in range(NUM_ARGS)]
    texts += [f" {name}" for name in INPUT_NAMES]
    # NOP has no phrases; its rows keep the table rectangular and are never used by a reference.
    rows = [PHRASES.get(name, ("",) * PHRASINGS) for name in OPCODES]
    parts = [text.partition("{k}") for row in rows for text in row]
    texts += [f" {before.rstrip()}" if before else "" for before, _, _ in parts]
    texts += [after for _, _, after in parts]
    return texts


def token_table(encode: Encode) -> TokenTable:
    """Looks every fragment up once, so that prompts can be put together inside jit.

    Args:
      encode: text to token ids, without special tokens. Encoding must commute with joining fragments: a token may
        begin with a space but never reach across one from the word before, nor join a word or number with the
        punctuation after it. Word-level tokenizers and byte-level BPE with the usual pre-tokenizer do so.

    Raises:
      ValueError: where a whole prompt is encoded differently from its fragments.
    """
    rows = [list(encode(text)) if text else [] for text in fragments()]
    ids = np.zeros((len(rows), max(len(row) for row in rows)), np.int32)  # [F, M]
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    for text, chain in _specimens():
        joined = [token for fragment in chain for token in rows[fragment]]
        if list(encode(text)) != joined:
            raise ValueError(
                f"this tokenizer encodes the prompt {text!r} differently from its fragments; "
                "use one whose tokens never reach across a space or from a word into punctuation."
            )
    return TokenTable(jnp.asarray(ids), jnp.asarray([len(row) for row in rows], jnp.int32))


def _specimens() -> list[tuple[str, list[int]]]:
    """Whole prompts with their fragments that show every frame, phrase and argument at least once."""
    instructions = [(o, p) for o in range(1, NUM_OPCODES) for p in range(PHRASINGS)]
    specimens = []
    for number, first in enumerate(range(0, len(instructions), 3)):
        group = instructions[first : first + 3]
        ops, phrasings = (np.array(column, np.int32) for column in zip(*group, strict=True))
        numbers = (number + np.arange(len(group))) % NUM_ARGS
        args = np.where(ops == INPUT, numbers % len(INPUT_NAMES), numbers) * np.array(READS_ARG)[ops]
        x_type = list(KINDS)[(number // len(FRAMES)) % len(KINDS)]
        plan = PromptPlan(np.int32(number % len(FRAMES)), phrasings, np.int32(len(group)), np.int32(x_type))  # type: ignore[arg-type]
        program = Program(ops, args.astype(np.int32))  # type: ignore[arg-type]
        specimens.append((render_text(plan, program), np.asarray(_fragment_chain(plan, program)).tolist()))
    return specimens


def _fragment_chain(plan: PromptPlan, program: Program) -> jax.Array:
    """Indices of the prompt's fragments, int32 `[2 + 4 L]`; absent ones are the empty fragment."""
    slot = jnp.arange(program.op.shape[-1], dtype=jnp.int32)  # [L]
    row = program.op * PHRASINGS + plan.phrasing  # [L]
    connector = jnp.where(slot > 0, CONNECTORS + plan.frame, EMPTY_FRAGMENT)
    argument = jnp.where(program.op == INPUT, NAMES, NUMBERS) + program.arg
    argument = jnp.where(jnp.asarray(READS_ARG)[program.op], argument, EMPTY_FRAGMENT)
    phrases = jnp.stack([connector, PREFIXES + row, argument, SUFFIXES + row], axis=-1)  # [L, 4]
    phrases = jnp.where((slot < plan.length)[:, None], phrases, EMPTY_FRAGMENT)
    start = STARTS + 2 * plan.frame + (plan.x_type == Type.LIST)
    return jnp.concatenate([start[None], phrases.reshape(-1), (ENDS + plan.frame)[None]]).astype(jnp.int32)


def render_tokens(table: TokenTable, plan: PromptPlan, program: Program, max_len: int) -> tuple[jax.Array, jax.Array]:
    """The token ids of one task's prompt, padded on the right; unbatched, for `jax.jit` and `jax.vmap`.

    Equal to encoding `render_text(plan, program)`. A prompt longer than `max_len` is cut; `prompt_length` tells.

    Returns:
      ids: int32 `[max_len]`, zero past the prompt.
      mask: bool `[max_len]`, true on the prompt.
    """
    chex.assert_rank([plan.frame, plan.length, plan.x_type], 0)
    chex.assert_equal_shape([plan.phrasing, program.op, program.arg])
    chain = _fragment_chain(plan, program)  # [C]
    ends = jnp.cumsum(table.lengths[chain])  # [C]
    position = jnp.arange(max_len, dtype=jnp.int32)  # [P]
    link = jnp.sum(position[:, None] >= ends[None, :], axis=1)  # [P] which link of the chain holds the position
    link = jnp.minimum(link, chain.shape[0] - 1)
    fragment = chain[link]
    offset = position - (ends[link] - table.lengths[fragment])
    mask = position < ends[-1]
    return jnp.where(mask, table.ids[fragment, jnp.where(mask, offset, 0)], 0), mask


def prompt_length(table: TokenTable, plan: PromptPlan, program: Program) -> jax.Array:
    """Number of tokens of one task's prompt, int32 `[]`."""
    return jnp.sum(table.lengths[_fragment_chain(plan, program)])


def longest_prompt(table: TokenTable, instructions: int) -> int:
    """The most tokens a prompt of that many instructions can have: a bound for `render_tokens`' `max_len`."""
    lengths = np.asarray(table.lengths)
    frames = len(FRAMES)
    arguments = np.where(np.arange(NUM_OPCODES) == INPUT, lengths[NAMES:PREFIXES].max(), lengths[NUMBERS:NAMES].max())
    words_of = lengths[PREFIXES:].reshape(2, NUM_OPCODES, PHRASINGS).sum(axis=0)
    phrase_length = int((words_of + np.where(READS_ARG, arguments, 0)[:, None]).max())
    starts = lengths[STARTS:CONNECTORS].reshape(frames, 2).max(axis=1)
    bounds = starts + (instructions - 1) * lengths[CONNECTORS:ENDS] + lengths[ENDS:NUMBERS]
    return int(bounds.max()) + instructions * phrase_length
