"""Writes qwen3_generation.npz with greedy texts by `transformers`: `python tests/golden/make_generation_golden.py`.

Only this script needs PyTorch. The weights are those of qwen3_parity.npz. Prompts are drawn until every choice is clear
by a margin that float32 rounding cannot turn, no row repeats itself, and the end ids end two rows early.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from make_qwen3_golden import build
from transformers import Qwen3ForCausalLM

HERE = Path(__file__).parent
LENGTHS = (7, 4, 2)
TOKENS = 16
MARGIN = 0.05  # of log-probabilities; the two implementations differ by less than 1e-4
DIFFERENT = 7  # ids that each row has at least
DRAWN = 400  # prompts of each length to choose from


def load_model() -> Qwen3ForCausalLM:
    """The untied model of the parity numbers."""
    stored = np.load(HERE / "qwen3_parity.npz")
    weights = {name.removeprefix("weights/"): stored[name] for name in stored.files if name.startswith("weights/")}
    return build(1e6, False, weights)


def run(model: Qwen3ForCausalLM, ids: np.ndarray, mask: np.ndarray, ends: list[int] | None) -> dict[str, np.ndarray]:
    """Tokens and log-probabilities of the greedy continuation, and the smallest margin of a choice."""
    out = model.generate(
        torch.tensor(ids),
        attention_mask=torch.tensor(mask.astype(np.int64)),
        do_sample=False,
        max_new_tokens=TOKENS,
        eos_token_id=ends,
        pad_token_id=ends[0] if ends else 0,  # as Qwen3 has it: the padding id is one of the end ids
        return_dict_in_generate=True,
        output_scores=True,
    )
    scores = torch.stack(out.scores, dim=1).log_softmax(-1)  # [B, T, V]
    best = scores.topk(2, dim=-1).values.numpy()
    tokens = out.sequences[:, ids.shape[1] :].numpy()
    return {"tokens": tokens, "log_probs": best[..., 0], "margin": best[..., 0] - best[..., 1]}


def draw_row(model: Qwen3ForCausalLM, rng: np.random.Generator, length: int) -> np.ndarray:
    """The prompt, of those drawn, whose continuation is varied and chosen with the clearest margins."""
    ids = rng.integers(0, model.config.vocab_size, (DRAWN, length))
    free = run(model, ids, np.ones(ids.shape, bool), None)
    varied = np.array([len(set(row.tolist())) >= DIFFERENT for row in free["tokens"]])
    margin = np.where(varied, free["margin"].min(axis=1), 0.0)
    print(f"prompts of {length}: {varied.sum()} are varied, the clearest margin is {margin.max():.3f}")
    return ids[margin.argmax()]


def length(row: list[int], ends: Sequence[int]) -> int:
    """Tokens of a row up to its first end id, in plain Python."""
    return next((count for count, token in enumerate(row, start=1) if token in ends), len(row))


def choose_ends(tokens: np.ndarray) -> list[int]:
    """Two ids of which one ends the first row, the other the second row later, and neither the third."""
    rows = tokens.tolist()
    for pair in itertools.permutations(sorted(set(rows[0] + rows[1])), 2):
        first, second, third = (length(row, pair) for row in rows)
        if 3 < first < second < third == TOKENS and (rows[0][first - 1], rows[1][second - 1]) == pair:
            return list(pair)
    raise SystemExit("no two ids end the rows as wanted; change the seed")


def main() -> None:
    """Find prompts, continue them with and without end ids, and write the file beside this script."""
    model = load_model()
    rng = np.random.default_rng(2)
    rows = [draw_row(model, rng, count) for count in LENGTHS]
    width = max(LENGTHS)
    ids = np.array([np.pad(row, (width - len(row), 0)) for row in rows])
    mask = np.arange(width)[None] >= width - np.array(LENGTHS)[:, None]
    free = run(model, ids, mask, None)
    assert free["margin"].min() > MARGIN
    ends = choose_ends(free["tokens"])
    ended = run(model, ids, mask, ends)
    lengths = [length(row, ends) for row in ended["tokens"].tolist()]
    print(f"ends {ends}, lengths {lengths}, margin {free['margin'].min():.3f}\n{free['tokens']}\n{ended['tokens']}")
    assert lengths[0] < lengths[1] < lengths[2] == TOKENS
    path = HERE / "qwen3_generation.npz"
    np.savez_compressed(
        path,
        ids=ids.astype(np.int32),
        mask=mask,
        ends=np.array(ends, np.int32),
        tokens=free["tokens"].astype(np.int32),
        log_probs=free["log_probs"],
        lengths=np.array(lengths, np.int32),
    )
    print(f"wrote {path}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
