"""Where a search stands: what is searched for, what was proposed, and what was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fuyu_jax.search.frontier import Entries, empty, pack, with_root
from fuyu_jax.search.guide import Limits
from vm.types import Examples, Program, Result, Settings

Array = jax.Array


class Problem(NamedTuple):
    """What is searched for, B tasks.

    Attributes:
      start: `Program[B, L]`, valid instructions only.
      examples: the public examples that programs are run on, `[B, E]`.
      judged: bool `[B, E]`, those that a program must get right.
      reference: `Program[B, L]`, which only the heuristic "oracle" looks at.
      key: typed key `[B]` of everything that is drawn.
    """

    start: Program
    examples: Examples
    judged: Array
    reference: Program
    key: Array


class Advice(NamedTuple):
    """What a model says of B programs, float32.

    Attributes:
      edit_logits: `[B, N - 1]`, unmasked.
      distance: `[B]`, edits that are left.
      trust: `[B]`, the probability that the program is solved.
    """

    edit_logits: Array
    distance: Array
    trust: Array


Ask = Callable[[Program, Result, Array], Advice]  # of programs [B, L], what they gave [B, E], and edits made [B]


class Tried(NamedTuple):
    """The programs that were taken from the queue, in this order; fields `[S]`, of which the first `taken` count.

    Attributes:
      key: int32 `[S, W]`, the program.
      parent, action, edits: int32, how it was made, as in `Entries`.
      outputs: uint32, hash of its outputs on the public inputs.
      attempt: int32, the attempt in which it was taken, -1 where nothing was.
      executions, passes: int32, the executions and forward passes up to this program's own.
      score: float32, how good an answer it is: 1 and the trust in it where it is right on all judged examples, else the
        likeness of its outputs to the targets as a share below 1; -1 where nothing was.
      left: float32, the edits it still needs by the distance head.
    """

    key: Array
    parent: Array
    action: Array
    edits: Array
    outputs: Array
    attempt: Array
    executions: Array
    passes: Array
    score: Array
    left: Array


class Search(NamedTuple):
    """A search on its way; batched over tasks everywhere but inside a step.

    Attributes:
      queue: programs proposed.
      tried: programs taken.
      taken, executions, passes: int32 `[]`, programs taken from the queue, run on the examples, and read by the model.
        A program that an earlier attempt ran is not run again.
      proposed: int32 `[]`, entries ever made.
      attempt: int32 `[]`, from 0.
      points: int32 `[]`, likeness to the targets of this attempt's best program, -1 at its beginning.
      improved: int32 `[]`, executions when that last rose.
      done: bool `[]`, an answer ended the search, or nothing is left to try, or the budget is spent.
    """

    queue: Entries
    tried: Tried
    taken: Array
    executions: Array
    passes: Array
    proposed: Array
    attempt: Array
    points: Array
    improved: Array
    done: Array


def begin(start: Program, limits: Limits, settings: Settings) -> Search:
    """A search that has done nothing yet. Unbatched; `vmap` it over start programs `[L]`."""
    chex.assert_shape([start.op, start.arg], (settings.slots,))
    key, size = pack(start, settings), limits.budget
    zeros, zero = jnp.zeros(size, jnp.int32), jnp.int32(0)
    tried = Tried(
        key=jnp.zeros((size, key.shape[0]), jnp.int32),
        parent=zeros - 1,
        action=zeros,
        edits=zeros,
        outputs=jnp.zeros(size, jnp.uint32),
        attempt=zeros - 1,
        executions=zeros,
        passes=zeros,
        score=jnp.full(size, -1.0),
        left=jnp.zeros(size),
    )
    queue = with_root(empty(size, key.shape[0]), key, jnp.bool_(True))
    return Search(queue, tried, zero, zero, zero, zero, zero, zero - 1, zero, jnp.bool_(False))
