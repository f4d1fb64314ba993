"""Evaluation splits: accepted candidates in index order, each behaviour once, none of them ambiguous.

What is kept depends on the candidates before it only, never on how many tasks are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from vm.ambiguity import CHUNK, ambiguous
from vm.candidates import ACCEPTED, REASON
from vm.chunks import Judged, ReasonLog, Recipe, concatenate, in_chunks, judge_chunk, judged, regrouped, rows
from vm.pairs import PARTNER_TRIES, partners
from vm.types import Value, values_equal

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
            log.record(group.index[row : row + 1], reason)
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
            log.record(group.index[row : row + 1], reason)
            if reason == ACCEPTED and partner is not None:
                seen.update((behaviour, _behaviour(partner, 0)))
                kept += [rows(group, [row]), partner]
                if len(kept) >= count:
                    return rows(concatenate(kept), slice(count))
    raise AssertionError("the stream of candidates ended.")


def _refusal(unclear: np.bool_, repeated: bool) -> int:
    return REASON["ambiguous"] if unclear else REASON["repeated_behaviour"] if repeated else ACCEPTED


def _behaviour(group: Judged, row: int) -> Behaviour:
    first, second = group.candidate.behaviour[row]
    return int(first), int(second)


def _partners_of(group: Judged, recipe: Recipe, public: int) -> list[list[Judged]]:
    """Every partner that makes a good task, for each row in the order of the tries."""
    seed, split = jnp.uint32(recipe.seed), jnp.int32(recipe.split)
    drawn, serves = partners(seed, group.index, group.candidate, recipe.settings)
    row, attempt = np.nonzero(serves)
    choices: list[list[Judged]] = [[] for _ in group.index]
    if not len(row):
        return choices
    candidate = rows(drawn, (row, attempt))

    def judge(index: np.ndarray, source: object, candidate: object) -> object:
        return judge_chunk(seed, split, index, source, candidate, recipe.examples, recipe.longest, recipe.settings)

    index, source, targets = rows((group.index, group.candidate.program, group.targets), row)
    inputs, partner_targets, reason = in_chunks(judge, 512, index, source, candidate)
    differs = ~np.asarray(values_equal(targets, partner_targets))[:, :public]
    good = np.flatnonzero((reason == ACCEPTED) & (differs.sum(axis=1) >= _DIFFERING))
    if not len(good):
        return choices
    pairs = rows(Judged(index, candidate, inputs, partner_targets), good)
    clear = ~ambiguous(pairs, recipe.settings)
    for place in np.flatnonzero(clear):
        choices[row[good[place]]].append(rows(pairs, [place]))
    return choices
