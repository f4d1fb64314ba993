"""A Qwen3 of the true sizes of Qwen3-4B, with random weights: fits, loads, trains and plays on a CPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.random_model import QWEN3_4B, write_random_model

ROOT = Path(__file__).resolve().parents[1]
# 3.63e9 projection weights of half a byte and 4/64 of a byte of scales; embedding and norms of two bytes.
KEPT = 3_633_315_840 * (1 / 2 + 4 / 64) + 2 * (151_936 * 2560 + 36 * (2 * 2560 + 2 * 128) + 2560)
LARGEST_PEAK_GIB = 6.0


@pytest.mark.slow
def test_four_billion_weights_load_in_six_gibibytes_and_take_a_step(tmp_path: Path) -> None:
    """Writes 8 GB beside the other temporary files, and removes them."""
    folder = tmp_path / "model"
    try:
        write_random_model(folder, json.loads(QWEN3_4B.read_text(encoding="utf-8")))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.full_size", folder],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    told = json.loads(done.stdout)
    assert told["load_peak_gib"] <= LARGEST_PEAK_GIB
    assert told["bytes_kept"] == KEPT and told["dtypes"] == ["bfloat16", "float32", "uint8"]
    assert told["bytes_told"] == 8_044_936_192
    assert told["moved"] and not told["base_moved"] and not told["skipped"]
    assert told["finite"] and 0 < told["loss"] < 100
