"""Simulated studies with a known effect, to see how often the gate is right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fuyu_jax.gate.decision import Study
from fuyu_jax.gate.panel import Panel

SPLITS = ("fresh_paired", "fresh_paraphrase", "fresh_standard", "hard_composition", "val_mixed")
BASE = (0.70, 0.60, 0.70, 0.20, 0.70)  # a control's share solved of each split, without tasks that start solved
START_SOLVED = 1 / 8
KEPT = 0.97
COMMON_SPREAD = 0.02  # standard deviation over seeds of the copied policy that all arms start from
FALSE_STOP = 0.15  # share of the unsolved that are stopped
# Where the variance of a task's latent score comes from. The pilot's copied and updated policies agree on five tasks
# in six within a seed, about as two policies do here.
DIFFICULTY, START, TASTE, LUCK = 0.5, 0.25, 0.1, 0.15


def simulate_study(
    rng: np.random.Generator, effect: float, seed_spread: float, seeds: int = 5, tasks: int = 1_280
) -> Study:
    """A study in which the arm's true difference to both controls is `effect`.

    A policy solves a task where the sum of four normal scores is below a threshold: the task's difficulty (shared by
    all), the seed's copied policy on this task (shared by all three policies), the policy's own taste for it (shared
    by its seeds), and luck. The threshold gives the split's rate, so that the difference is exactly `effect` on
    average over tasks and seeds. One task in eight starts solved and is kept equally well by all.

    Args:
      rng: decides everything.
      effect: difference of `accuracy_at_budget`, a share.
      seed_spread: standard deviation over seeds of the arm's true difference to a control, a share.
      seeds: number of seeds.
      tasks: number of tasks, a multiple of 40.
    """
    each = tasks // len(SPLITS)
    split = np.repeat(SPLITS, each)
    start_solved = np.tile(np.arange(each) % 8 == 7, len(SPLITS))
    difficulty, copied = _normal(rng, DIFFICULTY, tasks), _normal(rng, START, seeds, tasks)
    # Every policy has an effect of its own in each seed; the difference of two has the spread that was asked for.
    own = rng.normal(0.0, seed_spread / np.sqrt(2), (3, seeds))
    common = rng.normal(0.0, COMMON_SPREAD, seeds)
    panels = []
    for policy, gain in enumerate((effect, 0.0, 0.0)):
        rate = np.repeat(BASE, each)[None, :] + (common + (gain + own[policy]) / (1 - START_SOLVED))[:, None]
        rate = np.where(start_solved[None, :], KEPT, rate)  # [S, N]
        score = difficulty[None, :] + copied + _normal(rng, TASTE, 1, tasks) + _normal(rng, LUCK, seeds, tasks)
        solved = score < special.ndtri(np.clip(rate, 1e-6, 1 - 1e-6))
        stopped = rng.random((seeds, tasks)) < FALSE_STOP
        panels.append(
            Panel(
                tuple(range(seeds)),
                split,
                np.tile(np.arange(each), len(SPLITS)),
                start_solved,
                solved,
                stopped & ~solved,
            )
        )
    arm, continued, shuffled = panels
    return Study(arm, continued, shuffled)


def _normal(rng: np.random.Generator, variance: float, *shape: int) -> NDArray[np.float64]:
    return rng.normal(0.0, np.sqrt(variance), shape)
