"""Writes qwen3_parity.npz with the numbers of `transformers` on PyTorch: `python tests/golden/make_qwen3_golden.py`.

Only this script needs PyTorch. The weights are multiples of 1/1024 below 2, so that float16 stores them exactly.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
}
THETAS = (1e4, 1e6, 5e6)
MASKS = {
    "none": [[1] * 7, [1] * 7, [1] * 7],
    "left": [[0, 0, 0, 1, 1, 1, 1], [1] * 7, [0, 0, 0, 0, 0, 0, 1]],
    "right": [[1, 1, 1, 1, 0, 0, 0], [1] * 7, [1, 0, 0, 0, 0, 0, 0]],
}
LONG = 48


def build(theta: float, tied: bool, weights: dict[str, np.ndarray]) -> Qwen3ForCausalLM:
    """A float32 model with the given weights."""
    rope = {"rope_type": "default", "rope_theta": theta}
    config = Qwen3Config(**SIZES, rope_parameters=rope, tie_word_embeddings=tied, attn_implementation="eager")
    model = Qwen3ForCausalLM(config).eval()
    state = {key: torch.tensor(value.astype(np.float32)) for key, value in weights.items()}
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def draw_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights for every key, norms well away from 1, under `transformers`' own names and shapes."""
    config = Qwen3Config(
        **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4}, tie_word_embeddings=False
    )
    weights = {}
    for key, tensor in Qwen3ForCausalLM(config).state_dict().items():
        norm = "norm" in key
        value = rng.uniform(0.4, 1.8, tensor.shape) if norm else rng.normal(0.0, 0.25, tensor.shape)
        weights[key] = (np.round(np.clip(value, -1.9, 1.9) * 1024) / 1024).astype(np.float16)
    return weights


def run(model: Qwen3ForCausalLM, embeds: torch.Tensor, mask: np.ndarray, scale: np.ndarray) -> dict[str, np.ndarray]:
    """Hidden states, logits and the gradient of sum(mask * scale * logits) with respect to the embeddings."""
    attention = torch.tensor(mask)
    positions = (attention.cumsum(-1) - 1).clamp(min=0)
    leaf = embeds.detach().clone().requires_grad_()
    hidden = model.model(inputs_embeds=leaf, attention_mask=attention, position_ids=positions).last_hidden_state
    logits = model.lm_head(hidden)
    (logits * torch.tensor(scale) * attention[..., None]).sum().backward()
    real = mask[..., None].astype(np.float32)
    return {
        "hidden": hidden.detach().numpy() * real,
        "logits": logits.detach().numpy() * real,
        "grad": leaf.grad.numpy(),
    }


def main() -> None:
    """Run all cases and write the file beside this script."""
    rng = np.random.default_rng(20250514)
    weights = draw_weights(rng)
    ids = rng.integers(0, SIZES["vocab_size"], (3, 7)).astype(np.int32)
    long_ids = rng.integers(0, SIZES["vocab_size"], (1, LONG)).astype(np.int32)
    dense = rng.normal(0.0, 1.0, (3, 7, SIZES["hidden_size"])).astype(np.float32)
    scale = rng.normal(0.0, 1.0, (3, 7, SIZES["vocab_size"])).astype(np.float32)
    arrays: dict[str, np.ndarray] = {"ids": ids, "long_ids": long_ids, "dense": dense, "scale": scale}
    arrays |= {f"weights/{key}": value for key, value in weights.items()}

    def case(name: str, theta: float, tied: bool, tokens: np.ndarray | None, mask: np.ndarray) -> None:
        model = build(theta, tied, weights)
        embeds = torch.tensor(dense) if tokens is None else model.model.embed_tokens(torch.tensor(tokens))
        cut = scale if mask.shape == scale.shape[:2] else np.ones((*mask.shape, 1), np.float32)
        results = run(model, embeds, mask, cut)
        cases[name] = {"theta": theta, "tied": tied}
        arrays.update({f"{name}/mask": mask.astype(bool)} | {f"{name}/{key}": value for key, value in results.items()})

    cases: dict[str, dict[str, object]] = {}
    for theta in THETAS:
        for padding, mask in MASKS.items():
            case(f"tied_{theta:.0e}_{padding}", theta, True, ids, np.array(mask))
    for padding, mask in MASKS.items():
        case(f"untied_1e+06_{padding}", 1e6, False, ids, np.array(mask))
    case("dense_1e+06_left", 1e6, True, None, np.array(MASKS["left"]))
    case("long_5e+06", 5e6, True, long_ids, np.ones((1, LONG), np.int64))

    arrays["meta"] = np.array(json.dumps({"sizes": SIZES, "cases": cases}))
    path = Path(__file__).with_name("qwen3_parity.npz")
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    print(f"wrote {path}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
