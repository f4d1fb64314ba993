"""Evaluation splits: accepted candidates in index order, each behaviour once, none of them ambiguous.

What is kept depends on the candidates before it only, never on how many tasks are asked for.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from vm.ambiguity import ambiguous
from vm.candidates import ACCEPTED, REASON, Candidate
from vm.chunks import JUDGED, Judged, ReasonLog, Recipe, concatenate, in_chunks, judge_chunk, judged, regrouped, rows
from vm.pairs import draw_partners
from vm.types import Program, Value

Behaviour = tuple[int, int]
GROUP = 64  # judged candidates that are looked at together
_DIFFERING = 2  # public examples on which the outputs of a pair differ, at least; all, where there are fewer


def select(recipe: Recipe, count: int, log: ReasonLog) -> Judged:
    """The first `count` tasks of an evaluation split."""
    seen: set[Behaviour] = set()
    kept: list[Judged] = []
    for group in regrouped(judged(recipe, 0, log), GROUP):
        unclear = ambiguous(group, recipe.settings)
        for row, index in enumerate(group.indices):
            behaviour = _behaviour(group, row)
            if behaviour in seen:
                log.record(index, REASON["repeated_behaviour"])
            elif unclear[row]:
                log.record(index, REASON["ambiguous"])
            else:
                seen.add(behaviour)
                kept.append(rows(group, [row]))
                if len(kept) == count:
                    return concatenate(kept)
    raise AssertionError("the stream of candidates ended.")


def select_pairs(recipe: Recipe, count: int, public: int, log: ReasonLog) -> Judged:
    """The first `count` tasks of `fresh_paired`: rows 2j and 2j+1 are a pair, and share index and inputs."""
    seen: set[Behaviour] = set()
    kept: list[Judged] = []
    for group in regrouped(judged(recipe, 0, log), GROUP):
        unclear, partners_of = _partners(group, recipe, public)
        for row, index in enumerate(group.indices):
            behaviour = _behaviour(group, row)
            partner = next((p for p in partners_of[row] if _behaviour(p, 0) not in seen), None)
            if behaviour in seen:
                log.record(index, REASON["repeated_behaviour"])
            elif unclear[row]:
                log.record(index, REASON["ambiguous"])
            elif partner is None:
                log.record(index, REASON["no_partner"])
            else:
                seen.update((behaviour, _behaviour(partner, 0)))
                kept += [rows(group, [row]), partner]
                if len(kept) >= count:
                    return rows(concatenate(kept), slice(count))
    raise AssertionError("the stream of candidates ended.")


def _behaviour(group: Judged, row: int) -> Behaviour:
    first, second = group.candidate.behaviour[row]
    return int(first), int(second)


def _partners(group: Judged, recipe: Recipe, public: int) -> tuple[np.ndarray, list[list[Judged]]]:
    """For each row, whether it is ambiguous, and the partners that make a good task, in the order of the tries.

    Whether a row is ambiguous is only asked where it has a partner to begin with.
    """
    row, partners = _judged_partners(group, recipe, public)
    unclear = np.zeros(len(group.indices), bool)
    partners_of: list[list[Judged]] = [[] for _ in group.indices]
    if len(row):
        paired = np.unique(row)
        unclear[paired] = ambiguous(rows(group, paired), recipe.settings)
    wanted = np.flatnonzero(~unclear[row])
    if len(wanted):
        clear = ~ambiguous(rows(partners, wanted), recipe.settings)
        for place in wanted[clear]:
            partners_of[row[place]].append(rows(partners, [place]))
    return unclear, partners_of


def _judged_partners(group: Judged, recipe: Recipe, public: int) -> tuple[np.ndarray, Judged]:
    """Partners that pass the judge and differ on enough public examples, with the rows they belong to: `[P]`."""
    seed, split = jnp.uint32(recipe.seed), jnp.int32(recipe.split)
    drawn, serves = rows(draw_partners(seed, group.indices, group.candidate, recipe.settings), slice(None))
    row, attempt = np.nonzero(serves)
    if not len(row):
        return row, rows(group, row)
    candidate = rows(drawn, (row, attempt))

    def judge(indices: np.ndarray, source: Program, candidate: Candidate) -> tuple[Value, Value, jax.Array]:
        return judge_chunk(seed, split, indices, source, candidate, recipe.examples, recipe.settings)

    indices, source, targets = rows((group.indices, group.candidate.program, group.targets), row)
    inputs, partner_targets, reason = in_chunks(judge, JUDGED, indices, source, candidate)
    differing = _differ(targets, partner_targets)[:, :public].sum(axis=1)
    good = np.flatnonzero((reason == ACCEPTED) & (differing >= min(_DIFFERING, public)))
    return row[good], rows(Judged(indices, candidate, inputs, partner_targets), good)


def _differ(a: Value, b: Value) -> np.ndarray:
    """`~values_equal` on host arrays, whose shapes change too often to compile for."""
    return (a.type != b.type) | (a.length != b.length) | np.any(a.words != b.words, axis=-1)
