"""Measuring a saved policy once more: at other budgets, with sampled episodes, on tasks whose prompts are free text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import vm
from fuyu_jax.evaluate.measure import MODES, Labels, Lanes, chunks, greedy, outcomes_of, roll_split, sampled_wins
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.policy import Params, Play, Policy
from fuyu_jax.tokenizer import Tokenizer
from vm.tasks import TaskArrays, Tasks


def measure_again(
    play: Play,
    params: Params,
    splits: Mapping[str, Tasks],
    budgets: Sequence[int],
    own: Sequence[int],
    size: int,
    labels: Labels,
    advance: Callable[[str], object] = lambda split: None,
) -> Outcomes:
    """Outcomes like those of `measure_policy`, and the same to the bit at the budgets that the run measured itself.

    Args:
      play: episodes of the policy.
      params: its parameters.
      splits: tasks by split.
      budgets: K values to measure.
      own: the run's own K values, in its order. Numbers may depend on the shape of a batch in their last bits, so
        every batch has as many lanes as the run's had.
      size: how many tasks the run took at a time, for the same reason.
      labels: whose rows they are.
      advance: called when a split is done.
    """
    roll = greedy(play, params)
    parts = []
    for split, tasks in splits.items():
        lanes: dict[int, Lanes] = {}
        for group in lane_groups(budgets, own):
            lanes |= dict(zip(group, roll_split(roll, tasks, group, size), strict=True))
        parts += [outcomes_of(lanes[k], labels, mode, split, k) for k in budgets for mode in MODES]
        advance(split)
    return Outcomes.concatenate(parts)


def lane_groups(budgets: Sequence[int], own: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups of as many budgets as a run has, which together hold those asked for: its own in its order first."""
    others = [k for k in budgets if k not in own]
    groups = [tuple(own)] if len(others) < len(budgets) else []
    for first in range(0, len(others), len(own)):
        group = others[first : first + len(own)]
        groups.append(tuple(group + group[-1:] * (len(own) - len(group))))
    return groups


def sampled_rates(
    play: Play, params: Params, tasks: Tasks, budgets: Sequence[int], samples: int, lanes: int, size: int, seed: int
) -> dict[str, dict[str, float]]:
    """For each budget, `pass_at_n` for n = 1, 2, 4, ... and `samples`: the chance that one of n samples solves a task.

    The samples of the first tasks are those of `pass_at`; `size` is that of `measure_again`.
    """
    sizes = sorted({samples, *(2**power for power in range(samples.bit_length()))})
    rates = {}
    for k in budgets:
        won = [sampled_wins(play, params, part, k, samples, lanes, seed) for part in chunks(tasks, size)]
        counts = np.concatenate(won).sum(axis=1)
        rates[str(k)] = {f"pass_at_{n}": pass_rate(counts, samples, n) for n in sizes}
    return rates


def pass_rate(wins: NDArray[Any], samples: int, n: int) -> float:
    """The unbiased estimate of pass@n from the winning samples of each task, int `[N]` (Chen et al., 2021, eq. 1)."""
    ways = math.comb(samples, n)
    return float(np.mean([1 - math.comb(samples - int(count), n) / ways for count in wins]))


class TextTasks(NamedTuple):
    """Tasks with the tokens of their prompts: `ids` int32 `[N, P]` and `mask` bool `[N, P]`, true for real tokens."""

    tasks: TaskArrays
    ids: jax.Array
    mask: jax.Array

    @property
    def public(self) -> vm.Examples:
        """The public examples."""
        return self.tasks.public

    @property
    def hidden(self) -> vm.Examples:
        """The hidden examples."""
        return self.tasks.hidden

    @property
    def start(self) -> vm.Program:
        """The programs to repair."""
        return self.tasks.start


@dataclass(frozen=True)
class TextPolicy(Policy):
    """A policy that reads `TextTasks`, whatever their prompts say."""

    @classmethod
    def of(cls, policy: Policy) -> TextPolicy:
        """The policy with another way to its prompts."""
        return cls(**{item.name: getattr(policy, item.name) for item in fields(policy)})

    def prompt_ids(self, tasks: Any) -> tuple[jax.Array, jax.Array]:
        """The tokens that the tasks bring."""
        return tasks.ids, tasks.mask


def with_tokens(splits: Mapping[str, Tasks], tokenizer: Tokenizer, shortest: int) -> dict[str, Tasks]:
    """Tasks whose arrays are `TextTasks`, padded on the right to one length of at least `shortest`.

    Raises:
      ValueError: for a word that the tokenizer has no token for.
    """
    encoded = {split: [encode_prompt(tokenizer, prompt) for prompt in tasks.prompts] for split, tasks in splits.items()}
    length = max(shortest, *(len(ids) for rows in encoded.values() for ids in rows))
    read = {}
    for split, tasks in splits.items():
        ids = np.zeros((len(tasks), length), np.int32)
        mask = np.zeros(ids.shape, np.bool_)
        for row, tokens in enumerate(encoded[split]):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, True
        arrays: Any = TextTasks(tasks.arrays, jnp.asarray(ids), jnp.asarray(mask))
        read[split] = replace(tasks, arrays=arrays)
    return read


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Token ids of a prompt.

    Raises:
      ValueError: for a word that the tokenizer has no token for.
    """
    if unknown := tokenizer.unknown_words(prompt):
        raise ValueError(f"the model has no token for {unknown[0]!r} in the prompt {prompt!r}; use other words.")
    return tokenizer.encode(prompt)
