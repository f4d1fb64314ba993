"""Writes a model folder of any Qwen3 sizes with random weights: `python -m benchmarks.random_model FOLDER`.

It stands in for published weights where only sizes matter: for load times, memory and step times.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fuyu_jax.qwen3 import ModelError, Qwen3Config, resolve_model
from fuyu_jax.qwen3.config import read_json
from fuyu_jax.qwen3.locate import TINY
from fuyu_jax.qwen3.save import SHARD_BYTES, key_shapes, write_json, write_weights
from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.errors import UserError, run_main

QWEN3_4B = Path(__file__).with_name("qwen3_4b_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_CHUNK = 1 << 22  # values drawn at a time


def write_random_model(folder: Path, entries: dict[str, Any], *, seed: int = 0, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a folder in Hugging Face layout: config, bfloat16 weights, and the tiny model's tokenizer.

    Kernels and embedding are normal with the config's `initializer_range`, norms uniform from 0.5 to 1.5. A few
    megabytes are in memory at a time.

    Args:
      folder: made where it does not exist; files of the same names are replaced.
      entries: of the `config.json`.
      seed: of the weights.
      shard_bytes: a file is closed before it would grow beyond this; one tensor is never split.

    Raises:
      ModelError: where the entries are not those of a Qwen3.
    """
    config = Qwen3Config.from_dict(entries)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    shapes = key_shapes(config)
    write_weights(
        folder, shapes, lambda key: _draw(shapes[key], rng, config.initializer_range), jnp.bfloat16, shard_bytes
    )
    write_json(folder / "config.json", entries)
    for name in TOKENIZER_FILES:
        shutil.copyfile(resolve_model(TINY) / name, folder / name)


def _draw(shape: tuple[int, ...], rng: np.random.Generator, spread: float) -> Iterator[np.ndarray]:
    count = math.prod(shape)
    for begin in range(0, count, _CHUNK):
        size = min(_CHUNK, count - begin)
        if len(shape) == 1:
            yield rng.uniform(0.5, 1.5, size)
        else:
            yield np.float32(spread) * rng.standard_normal(size, np.float32)


def main(argv: Sequence[str]) -> None:
    """Write the folder that the command line asks for."""
    parser = Parser("benchmarks.random_model", "Writes a Qwen3 folder with random bfloat16 weights.")
    parser.add_argument("folder", type=Path, help="folder to write, absent or empty")
    parser.add_argument("--config", type=Path, default=QWEN3_4B, help="config.json with the sizes (default Qwen3-4B's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default 0)")
    options = parser.parse_args(argv)
    if options.folder.exists() and (not options.folder.is_dir() or any(options.folder.iterdir())):
        raise UserError(f"{options.folder} exists and is not an empty folder; give another.")
    if options.seed < 0:
        raise UserError(f"--seed is {options.seed}; use a whole number from 0.")
    try:
        write_random_model(options.folder, read_json(options.config, "give a config.json"), seed=options.seed)
    except ModelError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{options.folder} cannot be written ({error.strerror}); give another folder.") from None
    size = sum(path.stat().st_size for path in options.folder.iterdir())
    print(f"wrote {options.folder}: {size / 1e6:,.1f} MB in {len(list(options.folder.glob('*.safetensors')))} shards")


if __name__ == "__main__":
    sys.exit(run_main(main))
