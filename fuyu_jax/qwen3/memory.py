"""Bytes that a model's weights need before anything is loaded: `python -m fuyu_jax.qwen3.memory` prints a table."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from tabulate import tabulate

from fuyu_jax.qwen3.config import ModelError, Qwen3Config, read_config
from fuyu_jax.qwen3.layers import PROJECTIONS, layer_shapes
from fuyu_jax.qwen3.locate import resolve_model
from fuyu_jax.qwen3.quantisation import QUANTS, Quant, quantised_shapes

# Sizes of the public dense models, from their config.json files on the Hugging Face hub.
_COMMON = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e6}
PUBLIC: dict[str, Qwen3Config] = {
    name: Qwen3Config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        tie_word_embeddings=tied,
        **_COMMON,  # type: ignore[arg-type]
    )
    for name, hidden, inner, layers, heads, tied in (
        ("Qwen/Qwen3-0.6B", 1024, 3072, 28, 16, True),
        ("Qwen/Qwen3-1.7B", 2048, 6144, 28, 16, True),
        ("Qwen/Qwen3-4B", 2560, 9728, 36, 32, True),
        ("Qwen/Qwen3-8B", 4096, 12288, 36, 32, False),
    )
}
GIB = 2**30


class Need(NamedTuple):
    """Bytes: of the frozen base, of the adapters, and of the adapters' gradients and two optimiser moments."""

    base: int
    adapters: int
    optimiser: int


def weights_needed(config: Qwen3Config, quant: Quant, rank: int = 16, dtype: DTypeLike = jnp.bfloat16) -> Need:
    """What a model takes with adapters on all projections; heads, state embedder and activations come on top.

    Args:
      config: sizes.
      quant: how the projections are kept.
      rank: of the adapters, which are float32.
      dtype: of all weights that are not quantised.
    """
    width = jnp.dtype(dtype).itemsize
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    base, adapters = (tables + config.hidden_size) * width, 0
    for name, shape in layer_shapes(config).items():
        if name in PROJECTIONS:
            adapters += config.num_hidden_layers * rank * sum(shape) * 4
        if name in PROJECTIONS and quant != "none":
            leaves = jax.tree.leaves(quantised_shapes(quant, shape))
            size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        else:
            size = math.prod(shape) * width
        base += config.num_hidden_layers * size
    return Need(base, adapters, 3 * adapters)


def table(configs: dict[str, Qwen3Config], rank: int) -> str:
    """A Markdown table of GiB: a row a model, the base by `--quant`, and what training adapters adds."""
    rows = []
    for name, config in configs.items():
        needs = [weights_needed(config, quant, rank) for quant in QUANTS]
        training = needs[0].adapters + needs[0].optimiser
        rows.append([name, *(f"{need.base / GIB:.1f}" for need in needs), f"{training / GIB:.2f}"])
    headers = ["GiB", "none (bfloat16)", *QUANTS[1:], f"adapters of rank {rank} in training"]
    return tabulate(rows, headers, tablefmt="github", colalign=("left", *["right"] * 4), disable_numparse=True)


def main(argv: Sequence[str]) -> None:
    """Print the table of the public models, or of those that are named."""
    from fuyu_jax.runs.command_line import Parser, whole_number
    from fuyu_jax.runs.errors import UserError

    parser = Parser(prog="python -m fuyu_jax.qwen3.memory", description="GiB that a model's weights need.")
    parser.add_argument("--model", nargs="+", help="model folders or hub ids in the cache (default: the public sizes)")
    parser.add_argument("--rank", default="16", help="rank of the adapters (default 16)")
    options: argparse.Namespace = parser.parse_args(argv)
    try:
        configs = {name: read_config(resolve_model(name)) for name in options.model} if options.model else PUBLIC
    except ModelError as error:
        raise UserError(str(error)) from error
    print(table(configs, whole_number("rank", options.rank, 1, 1024)))


if __name__ == "__main__":
    from fuyu_jax.runs.errors import run_script

    run_script("fuyu_jax.qwen3.memory")
