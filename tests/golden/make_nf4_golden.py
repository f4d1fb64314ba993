"""Writes nf4.npz with the codes and scales of bitsandbytes: `python tests/golden/make_nf4_golden.py`.

Only this script needs PyTorch and bitsandbytes (0.50.2 on a CPU when the file was made). Weights are `(out, in)` as
files store them, quantised row by row in blocks of 64.
"""

from __future__ import annotations

from pathlib import Path

import bitsandbytes
import numpy as np
import torch

BLOCK = 64
SEED = 2305


def quantise(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Packed codes `[out, ceil(in / 2)]`, scales `[out, blocks]` and what they stand for `[out, in]`, row by row."""
    arrays: dict[str, list[np.ndarray]] = {"codes": [], "scales": [], "restored": []}
    for row in weight.astype(np.float32):
        packed, state = bitsandbytes.functional.quantize_4bit(torch.tensor(row), blocksize=BLOCK, quant_type="nf4")
        arrays["codes"].append(packed.ravel().numpy())
        arrays["scales"].append(state.absmax.numpy())
        arrays["restored"].append(bitsandbytes.functional.dequantize_4bit(packed, state).ravel().numpy())
    return {name: np.stack(rows) for name, rows in arrays.items()}


def draw_weights() -> dict[str, np.ndarray]:
    """Weights with a block of zeros and an outlier; with short last blocks; and one block around every midpoint."""
    rng = np.random.default_rng(SEED)
    plain = rng.normal(0, 0.05, (20, 192)).astype(np.float16)
    plain[3, 64:128] = 0
    plain[5, 100] = 2.5
    levels = bitsandbytes.functional.get_4bit_type("nf4", device="cpu").numpy()
    middle = (levels[:-1] + levels[1:]) / np.float32(2)
    around = (middle, np.nextafter(middle, np.float32(-2)), np.nextafter(middle, np.float32(2)), levels)
    return {
        "plain": plain,
        "short": rng.normal(0, 0.05, (6, 70)).astype(np.float16),
        "odd": rng.normal(0, 0.05, (6, 129)).astype(np.float16),
        "midpoints": np.concatenate((*around, np.zeros(3, np.float32)))[None],
    }


def main() -> None:
    """Quantise all weights and write the file beside this script."""
    arrays = {"levels": bitsandbytes.functional.get_4bit_type("nf4", device="cpu").numpy()}
    for name, weight in draw_weights().items():
        arrays[f"{name}/weight"] = weight
        arrays |= {f"{name}/{part}": value for part, value in quantise(weight).items()}
    path = Path(__file__).with_name("nf4.npz")
    np.savez_compressed(path, **arrays)
    print(f"wrote {path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
