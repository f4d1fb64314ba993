"""Outcome tables made by hand, for tests of the gate: 256 tasks of each split, half of them solved by every policy."""

import numpy as np

from fuyu_jax.evaluate.outcomes import Outcomes

SPLITS = ("val_mixed", "fresh_standard", "fresh_paraphrase", "fresh_paired", "hard_composition")
EACH = 256
START, HALF = EACH // 8, EACH // 2  # tasks below START start solved, those below HALF end solved


def policy_outcomes(
    gains=0, seeds=5, each=EACH, arm="grpo_echo", phase="grpo_echo_r1_policy", mode="learned", stops=0, loses=0
):
    """Outcomes of one policy. In seed s and split h it solves `gains[s][h]` tasks more than half, or fewer.

    `stops` unsolved tasks of each split end in a false STOP, and `loses` tasks that start solved are broken.
    """
    gains = np.broadcast_to(gains, (seeds, len(SPLITS)))
    task = np.arange(each)
    parts = []
    for seed in range(seeds):
        for split, gain in zip(SPLITS, gains[seed], strict=True):
            solved = (task >= loses) & (task < HALF + gain)
            false_stop = task >= each - stops
            parts.append(
                Outcomes.build(
                    arm=arm, phase=phase, seed=seed, mode=mode, split=split, k=12 if split == SPLITS[-1] else 8,
                    task=task, start_solved=task < START, solved=solved, ever_solved=solved, false_stop=false_stop,
                    steps=1, valid_edits=1, edits="3",
                )
            )  # fmt: skip
    return Outcomes.concatenate(parts)
