"""Partners for `fresh_paired`: programs whose prompt differs in one word or number."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from vm.behaviour import SPLITS, behaviour_hash, probe_outputs, split_of
from vm.candidates import PARTNER_STREAM, Candidate, random_words, task_key
from vm.grammar import MOVES, draw_argument, obeys
from vm.isa import OPCODE_OF, OPCODES, READS_ARG
from vm.phrases import PHRASES, TRAIN_PHRASINGS
from vm.types import Program, Settings

PARTNER_TRIES = 16


def _siblings() -> tuple[np.ndarray, np.ndarray]:
    """Opcodes of one class whose phrases differ in one word: int32 `[44, P, K]` and their numbers `[44, P]`."""
    found: dict[tuple[int, int], list[int]] = {}
    for a, b in {(a, b) for move in MOVES for a in move.opcodes for b in move.opcodes if a != b}:
        for phrasing in range(TRAIN_PHRASINGS):
            first, second = PHRASES[a][phrasing].split(), PHRASES[b][phrasing].split()
            if len(first) == len(second) and sum(x != y for x, y in zip(first, second, strict=True)) == 1:
                found.setdefault((OPCODE_OF[a], phrasing), []).append(OPCODE_OF[b])
    counts = np.zeros((len(OPCODES), TRAIN_PHRASINGS), np.int32)
    table = np.zeros((*counts.shape, max(len(others) for others in found.values())), np.int32)
    for place, others in found.items():
        counts[place] = len(others)
        table[place][: len(others)] = sorted(others)
    return table, counts


_SIBLINGS, _SIBLING_COUNT = _siblings()


def change_one_word(words: jax.Array, candidate: Candidate) -> tuple[Program, jax.Array]:
    """Changes one immediate, or one opcode into a sibling, in a random slot; and whether anything changed.

    Args:
      words: random uint32 `[2]`.
      candidate: with train's phrasings.
    """
    op, arg = candidate.program
    slot = (words[0] % candidate.length.astype(jnp.uint32)).astype(jnp.int32)
    phrasing = candidate.plan.phrasing[slot]
    count = jnp.asarray(_SIBLING_COUNT)[op[slot], phrasing]
    which = (words[1] % jnp.maximum(count, 1).astype(jnp.uint32)).astype(jnp.int32)
    sibling = jnp.asarray(_SIBLINGS)[op[slot], phrasing, which]
    has_number = jnp.asarray(READS_ARG)[op[slot]] & (op[slot] != OPCODE_OF["INPUT"])
    swaps_opcode = (count > 0) & (~has_number | (words[0] >> 31 == 0))
    new_op = jnp.where(swaps_opcode, sibling, op[slot])
    new_arg = jnp.where(has_number & ~swaps_opcode, draw_argument(op[slot], words[1]), arg[slot])
    changed = (new_op != op[slot]) | (new_arg != arg[slot])
    return Program(op.at[slot].set(new_op), arg.at[slot].set(new_arg)), changed


@functools.partial(jax.jit, static_argnames="settings")
def draw_partners(
    seed: jax.Array, index: jax.Array, candidate: Candidate, settings: Settings
) -> tuple[Candidate, jax.Array]:
    """`PARTNER_TRIES` random partners of each candidate, `[N, T]`, and which may serve: bool `[N, T]`.

    One serves when it obeys the rules on neighbouring opcodes and its behaviour is another one of the same split.
    """
    split = jnp.int32(SPLITS.index("fresh_paired"))

    def one(index: jax.Array, candidate: Candidate) -> tuple[Candidate, jax.Array]:
        key = jax.random.fold_in(task_key(seed, split, index), PARTNER_STREAM)
        words = random_words(key, 2 * PARTNER_TRIES).reshape(PARTNER_TRIES, 2)

        def attempt(words: jax.Array) -> tuple[Candidate, jax.Array]:
            program, changed = change_one_word(words, candidate)
            signature = candidate.signature
            behaviour = behaviour_hash(probe_outputs(program, signature, settings), signature)
            serves = changed & obeys(program.op, jnp.bool_(False)) & (split_of(behaviour) == split)
            serves &= jnp.any(behaviour != candidate.behaviour)
            return candidate._replace(program=program, behaviour=behaviour), serves

        return jax.vmap(attempt)(words)

    return jax.vmap(one)(index, candidate)
