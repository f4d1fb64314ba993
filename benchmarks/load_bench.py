"""`bench.py load`: seconds and peak memory of loading a model folder, each time in a process of its own.

As a script, `python -m benchmarks.load_bench FOLDER QUANT`, it loads once and prints both as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarks.random_model import write_random_model
from benchmarks.timing import Contender, Report, Row, make_rows
from fuyu_jax.qwen3 import ModelError, Qwen3Config, load_qwen3, resolve_model, weight_bytes
from fuyu_jax.qwen3.quantisation import QUANTS
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.manifest import peak_memory

BENCH = "load"
ROOT = Path(__file__).resolve().parents[1]
SAMPLE = Qwen3Config(
    vocab_size=32_768,
    hidden_size=768,
    intermediate_size=2304,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    rope_theta=1e6,
    tie_word_embeddings=True,
)
SAMPLE_SHARD = 64 * 10**6


@dataclasses.dataclass(frozen=True)
class Loading:
    """One loading: its seconds, the process's peak resident memory in GiB, and that of the moment before."""

    seconds: float
    peak_gib: float
    before_gib: float


def run(batches: Sequence[int] | None, repeats: int, model: str | None = None) -> Report:
    """Measure every way of keeping the weights; batch sizes mean nothing here.

    Args:
      batches: ignored.
      repeats: loadings of each way, in turns.
      model: a folder or cached hub id; None writes a small random folder and removes it.

    Raises:
      UserError: where the model cannot be loaded.
    """
    del batches
    if model is not None:
        return _measure(model, _folder_of(model), repeats)
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(Path(folder), SAMPLE.to_dict(), shard_bytes=SAMPLE_SHARD)
        return _measure("a random model", Path(folder), repeats)


def load_in_a_process(folder: Path, quant: str) -> Loading:
    """Load a folder in a fresh process.

    Raises:
      UserError: where that fails, with the last line of what the process said.
    """
    command = [sys.executable, "-m", "benchmarks.load_bench", str(folder.resolve()), quant]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise UserError(f"loading {folder} with quant {quant} failed: {said[-1]}")
    return Loading(**json.loads(done.stdout.splitlines()[-1]))


def _folder_of(model: str) -> Path:
    try:
        folder = resolve_model(model)
        weight_bytes(folder)
    except ModelError as error:
        raise UserError(f"--model cannot be loaded: {error}") from None
    return folder


def _measure(name: str, folder: Path, repeats: int) -> Report:
    loadings: dict[str, list[Loading]] = {quant: [] for quant in QUANTS}
    for _ in range(repeats):
        for quant, mine in loadings.items():
            mine.append(load_in_a_process(folder, quant))
    size = weight_bytes(folder)
    before = max(loading.before_gib for mine in loadings.values() for loading in mine)
    report = Report(
        notes=[
            f"Loaded is {name}, {size / 2**30:.3g} GiB of weights, each time in a fresh process that already holds "
            f"{before:.2f} GiB before it loads; with quant none the weights stay in bfloat16. Seconds include "
            "compiling. Files that were read before may come from the page cache."
        ]
    )
    for quant, mine in loadings.items():
        report.rows += _rows(quant, mine, size)
    return report


def _rows(quant: str, loadings: Sequence[Loading], size: int) -> list[Row]:
    """Megabytes of the file a second at the median time, and the largest of the peaks."""
    contender = Contender(quant, 1, lambda: None, {"MB": size // 10**6})
    (speed,) = make_rows(BENCH, contender, statistics.median(loading.seconds for loading in loadings))
    return [speed, {**speed, "rate": max(loading.peak_gib for loading in loadings), "unit": "GiB peak"}]


def _load_once(folder: str, quant: str) -> Loading:
    before = _peak_gib()
    begin = time.perf_counter()
    kept = jax.numpy.bfloat16 if quant == "none" else None
    model = load_qwen3(folder, param_dtype=kept, quant=next(kind for kind in QUANTS if kind == quant))
    jax.block_until_ready(jax.tree.leaves(model))
    return Loading(time.perf_counter() - begin, _peak_gib(), before)


def _peak_gib() -> float:
    """This process's own peak: on Linux what `getrusage` tells begins with the peak of the parent process."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return peak_memory()
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(_load_once(*sys.argv[1:]))))
