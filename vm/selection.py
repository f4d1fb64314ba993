"""Evaluation splits: accepted candidates in index order, each behaviour once, none of them ambiguous.

What is kept depends on the candidates before it only, never on how many tasks are asked for.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from vm.ambiguity import CHUNK, ambiguous
from vm.candidates import ACCEPTED, REASON
from vm.chunks import JUDGED, Judged, ReasonLog, Recipe, concatenate, in_chunks, judge_chunk, judged, regrouped, rows
from vm.pairs import partners
from vm.types import Value

Behaviour = tuple[int, int]
_DIFFERING = 2  # public examples on which the outputs of a pair differ, at least


def select(recipe: Recipe, count: int, log: ReasonLog) -> Judged:
    """The first `count` tasks of an evaluation split."""
    seen: set[Behaviour] = set()
    kept: list[Judged] = []
    for group in regrouped(judged(recipe, 0, log), CHUNK):
        unclear = ambiguous(group, recipe.settings)
        for row in range(CHUNK):
            behaviour = _behaviour(group, row)
            reason = _refusal(unclear[row], behaviour in seen)
            log.record(group.indices[row : row + 1], reason)
            if reason == ACCEPTED:
                seen.add(behaviour)
                kept.append(rows(group, [row]))
                if len(kept) == count:
                    return concatenate(kept)
    raise AssertionError("the stream of candidates ended.")


def select_pairs(recipe: Recipe, count: int, public: int, log: ReasonLog) -> Judged:
    """The first `count` tasks of `fresh_paired`: rows 2j and 2j+1 are a pair, and share index and inputs."""
    seen: set[Behaviour] = set()
    kept: list[Judged] = []
    for group in regrouped(judged(recipe, 0, log), CHUNK):
        unclear = ambiguous(group, recipe.settings)
        choices = _partners_of(group, recipe, public)
        for row in range(CHUNK):
            behaviour = _behaviour(group, row)
            reason = _refusal(unclear[row], behaviour in seen)
            partner = next((p for p in choices[row] if _behaviour(p, 0) not in seen), None)
            if reason == ACCEPTED and partner is None:
                reason = REASON["no_partner"]
            log.record(group.indices[row : row + 1], reason)
            if reason == ACCEPTED and partner is not None:
                seen.update((behaviour, _behaviour(partner, 0)))
                kept += [rows(group, [row]), partner]
                if len(kept) >= count:
                    return rows(concatenate(kept), slice(count))
    raise AssertionError("the stream of candidates ended.")


def _refusal(unclear: np.bool_, repeated: bool) -> int:
    return REASON["ambiguous"] if unclear else REASON["repeated_behaviour"] if repeated else ACCEPTED


def _differ(a: Value, b: Value) -> np.ndarray:
    """`~values_equal` on host arrays, whose shapes change too often to compile for."""
    return (a.type != b.type) | (a.length != b.length) | np.any(a.words != b.words, axis=-1)


def _behaviour(group: Judged, row: int) -> Behaviour:
    first, second = group.candidate.behaviour[row]
    return int(first), int(second)


def _partners_of(group: Judged, recipe: Recipe, public: int) -> list[list[Judged]]:
    """Every partner that makes a good task, for each row in the order of the tries."""
    seed, split = jnp.uint32(recipe.seed), jnp.int32(recipe.split)
    drawn, serves = rows(partners(seed, group.indices, group.candidate, recipe.settings), slice(None))
    row, attempt = np.nonzero(serves)
    choices: list[list[Judged]] = [[] for _ in group.indices]
    if not len(row):
        return choices
    candidate = rows(drawn, (row, attempt))

    def judge(index: np.ndarray, source: object, candidate: object) -> object:
        return judge_chunk(seed, split, index, source, candidate, recipe.examples, recipe.settings)

    index, source, targets = rows((group.indices, group.candidate.program, group.targets), row)
    inputs, partner_targets, reason = in_chunks(judge, JUDGED, index, source, candidate)
    differing = _differ(targets, partner_targets)[:, :public].sum(axis=1)
    good = np.flatnonzero((reason == ACCEPTED) & (differing >= _DIFFERING))
    if not len(good):
        return choices
    pairs = rows(Judged(index, candidate, inputs, partner_targets), good)
    clear = ~ambiguous(pairs, recipe.settings)
    for place in np.flatnonzero(clear):
        choices[row[good[place]]].append(rows(pairs, [place]))
    return choices
