"""Tasks: a prompt, examples, the program they come from and a program to start from.

Everything about a task follows from (data seed, split, index): `make_tasks` makes the first tasks of a split with
their prompts as text, `TaskStream` goes through training tasks without end, and `candidates` is the same for use
inside jit, with a reason to refuse beside each task instead of a selection.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from vm import candidates as drawing
from vm.behaviour import EVALUATION_SPLITS, SPLITS
from vm.candidates import ACCEPTED, BLANK, CORRUPTED, STARTS, Candidate, task_key
from vm.chunks import Buffer, Judged, ReasonLog, Recipe, in_chunks, judged, rows
from vm.grammar import MAX_LENGTH
from vm.prompts import PromptPlan, render_text
from vm.selection import select, select_pairs
from vm.types import DEFAULT_SETTINGS, MAX_STACK, Examples, Program, Settings, Value

LARGEST_SPLIT = 4096  # evaluation splits are finite
_TRAIN = SPLITS.index("train")
STARTED = 256  # tasks that get their start program at a time


class TaskArrays(NamedTuple):
    """Tasks as arrays, int32, batch axis first.

    Attributes:
      public: examples with inputs `[N, public, 2]` and targets `[N, public]`.
      hidden: the same for the hidden examples.
      reference: the program the targets come from, `[N, L]`, laid out from slot 0.
      start: the program to repair, `[N, L]`.
      family: `[N]`, index into `FAMILIES`.
      plan: the prompts, see `PromptPlan`; `render_text` and `render_tokens` read it with `reference`.
      length: `[N]`, number of instructions of the reference.
    """

    public: Examples
    hidden: Examples
    reference: Program
    start: Program
    family: jax.Array
    plan: PromptPlan
    length: jax.Array


@dataclass(frozen=True)
class Tasks:
    """The first tasks of a split.

    Attributes:
      split: name of the split.
      seed: data seed.
      indices: candidate index of each task, uint32 `[N]`; in `fresh_paired` both tasks of a pair have one index.
      prompts: the requests as text.
      arrays: everything else that a task is, on the device.
      behaviours: uint64 `[N]`, hash of the reference's outputs on the probe set.
      refusals: how many candidates, up to the last that was needed, met each reason in `REFUSALS`.
    """

    split: str
    seed: int
    indices: np.ndarray = field(repr=False)
    prompts: list[str] = field(repr=False)
    arrays: TaskArrays = field(repr=False)
    behaviours: np.ndarray = field(repr=False)
    refusals: dict[str, int] = field(repr=False)

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.prompts)

    @property
    def public(self) -> Examples:
        """Examples that search and verified modes may see, `[N, public]`."""
        return self.arrays.public

    @property
    def hidden(self) -> Examples:
        """Examples that only score, `[N, hidden]`."""
        return self.arrays.hidden

    @property
    def reference(self) -> Program:
        """The programs the targets come from, `[N, L]`."""
        return self.arrays.reference

    @property
    def start(self) -> Program:
        """The programs to repair, `[N, L]`."""
        return self.arrays.start

    @property
    def family(self) -> jax.Array:
        """Index into `FAMILIES`, int32 `[N]`."""
        return self.arrays.family


def candidates(
    split: str,
    seed: jax.Array | int,
    indices: jax.Array,
    start: str = "mixed",
    public: int = 4,
    hidden: int = 16,
    settings: Settings = DEFAULT_SETTINGS,
) -> tuple[TaskArrays, jax.Array]:
    """The candidates at these indices, for use inside jit: refused ones are among them.

    The checks are those that concern one candidate alone. What evaluation splits add (each behaviour once, no
    ambiguity, partners, starts in exact shares) is up to `make_tasks`; for `train` this is all there is.

    Args:
      split: one of `SPLITS`.
      seed: data seed, a Python int or uint32 `[]`.
      indices: uint32 `[N]`.
      start: "blank", "corrupted" or "mixed".
      public: number of public examples.
      hidden: number of hidden examples.
      settings: the machine's sizes.

    Returns:
      The tasks and their reason to be refused: int32 `[N]`, index into `REFUSALS`, 0 (accepted) to keep.
    """
    _check(split, start, public, hidden, settings)
    chex.assert_rank(indices, 1)
    seed, which = jnp.asarray(seed, jnp.uint32), jnp.int32(SPLITS.index(split))

    def one(index: jax.Array) -> tuple[TaskArrays, jax.Array]:
        key = task_key(seed, which, index)
        candidate, reason = drawing.screen(key, which, settings)
        inputs = drawing.draw_inputs(key, candidate.program, candidate.signature, public + hidden, settings)
        targets, verdict = drawing.judge(candidate, inputs, settings)
        kind = _kind(start, drawing.draw_kind(key))
        program = drawing.draw_start(key, candidate, kind, jnp.uint32(0), inputs, targets, settings)
        return _task_arrays(candidate, inputs, targets, program, public), jnp.where(reason == ACCEPTED, verdict, reason)

    return jax.vmap(one)(jnp.asarray(indices, jnp.uint32))


def make_tasks(
    split: str,
    seed: int,
    count: int,
    start: str = "mixed",
    public: int = 4,
    hidden: int = 16,
    settings: Settings = DEFAULT_SETTINGS,
) -> Tasks:
    """The first `count` tasks of a split; the first n are the same however many are asked for.

    Args:
      split: one of `SPLITS`.
      seed: data seed, 0 to 2**31 - 1; evaluation always uses 0.
      count: number of tasks; at most 4,096 in evaluation splits.
      start: "blank", "corrupted", or "mixed": half blank, three eighths corrupted, one eighth solved; in evaluation
        splits exactly so in every 8 (pairs: 16) consecutive tasks. Nothing else about a task depends on it.
      public: public examples a task.
      hidden: hidden examples a task. Which candidates are refused depends on the number of all examples.
      settings: the machine's sizes.

    Raises:
      ValueError: for an argument out of its range.
      TypeError: for a seed or a count that is no whole number.
    """
    recipe = recipe_of(split, operator.index(seed), start, public, hidden, settings)
    if operator.index(count) < 1:
        raise ValueError(f"count is {count}; ask for at least 1 task.")
    if split in EVALUATION_SPLITS and count > LARGEST_SPLIT:
        raise ValueError(f"count is {count}, but split {split!r} is finite; ask for at most {LARGEST_SPLIT} tasks.")
    log = ReasonLog()
    if split == "train":
        chosen = Buffer(judged(recipe, 0, log)).take(count)
    elif split == "fresh_paired":
        chosen = select_pairs(recipe, count, public, log)
    else:
        chosen = select(recipe, count, log)
    arrays = with_starts(recipe, chosen, start, public)
    reference, plan = rows((arrays.reference, arrays.plan), slice(None))
    behaviour = np.asarray(chosen.candidate.behaviour).astype(np.uint64)
    return Tasks(
        split=split,
        seed=seed,
        indices=chosen.indices,
        prompts=[render_text(rows(plan, row), rows(reference, row)) for row in range(count)],
        arrays=jax.tree.map(jnp.asarray, arrays),
        behaviours=behaviour[:, 0] << np.uint64(32) | behaviour[:, 1],
        refusals=log.counts(int(chosen.indices[-1]) + 1),
    )


def _check(split: str, start: str, public: int, hidden: int, settings: Settings) -> None:
    if split not in SPLITS:
        raise ValueError(f"split {split!r} doesn't exist; use one of {', '.join(SPLITS)}.")
    if start not in STARTS:
        raise ValueError(f"start {start!r} doesn't exist; use one of {', '.join(STARTS)}.")
    for name, number in (("public", public), ("hidden", hidden)):
        if number < 1:
            raise ValueError(f"{name} is {number}; a task needs at least 1 {name} example.")
    smallest = Settings(slots=MAX_LENGTH)
    if settings.slots < MAX_LENGTH or settings.stack < MAX_STACK or settings.args < smallest.args:
        raise ValueError(
            f"{settings} is too small for the tasks; use at least {MAX_LENGTH} slots, a stack of {MAX_STACK} "
            f"and {smallest.args} immediates."
        )


def recipe_of(split: str, seed: int, start: str, public: int, hidden: int, settings: Settings) -> Recipe:
    """The recipe of a split's tasks.

    Raises:
      ValueError: for an argument out of its range.
    """
    _check(split, start, public, hidden, settings)
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed is {seed}; use a data seed from 0 to 2147483647.")
    return Recipe(SPLITS.index(split), seed, public + hidden, settings)


def _kind(start: str, drawn: jax.Array) -> jax.Array:
    kinds = {"blank": jnp.full_like(drawn, BLANK), "corrupted": jnp.full_like(drawn, CORRUPTED), "mixed": drawn}
    return kinds[start]


def _task_arrays(candidate: Candidate, inputs: Value, targets: Value, start: Program, public: int) -> TaskArrays:
    """Puts tasks together; examples are the axis after the batch's, if there is one."""
    axis = targets.type.ndim - 1
    examples = Examples(inputs, targets)
    here, there = (
        jax.tree.map(lambda leaf, cut=cut: leaf[(slice(None),) * axis + (cut,)], examples)
        for cut in (slice(public), slice(public, None))
    )
    return TaskArrays(here, there, candidate.program, start, candidate.family, candidate.plan, candidate.length)


@functools.partial(jax.jit, static_argnames=("start", "settings"))
def _start_chunk(
    seed: jax.Array, split: jax.Array, rows: Judged, position: jax.Array, start: str, settings: Settings
) -> Program:
    """Start programs of tasks at these positions of their split: `[N, L]`."""
    paired = split == SPLITS.index("fresh_paired")

    def one(row: Judged, position: jax.Array) -> Program:
        key = task_key(seed, split, row.indices)
        scattered = drawing.scattered_kind(seed, split, position, paired)
        kind = _kind(start, jnp.where(split == _TRAIN, drawing.draw_kind(key), scattered))
        member = jnp.where(paired, position % 2, 0).astype(jnp.uint32)
        return drawing.draw_start(key, row.candidate, kind, member, row.inputs, row.targets, settings)

    return jax.vmap(one)(rows, position)


def with_starts(recipe: Recipe, chosen: Judged, start: str, public: int) -> TaskArrays:
    """Host arrays of whole tasks from accepted candidates, the first of which is the first of its split."""
    seed, split = jnp.uint32(recipe.seed), jnp.int32(recipe.split)

    def chunk(group: Judged, position: np.ndarray) -> Program:
        return _start_chunk(seed, split, group, position, start, recipe.settings)

    position = np.arange(len(chosen.indices), dtype=np.uint32)
    programs = in_chunks(chunk, STARTED, chosen, position)
    return _task_arrays(chosen.candidate, chosen.inputs, chosen.targets, programs, public)
