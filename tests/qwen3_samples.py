"""Small Qwen3 models and model folders for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from fuyu_jax.qwen3 import Qwen3, Qwen3Config
from fuyu_jax.qwen3.weights import INDEX_FILE, SINGLE_FILE, key_table

SMALL = Qwen3Config(
    vocab_size=40,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=1e6,
    tie_word_embeddings=True,
)


def threefry(seed: int) -> jax.Array:
    """A typed key of the stable generator."""
    return jax.random.key(seed, impl="threefry2x32")


def lively_model(config: Qwen3Config = SMALL, seed: int = 0, **options: Any) -> Qwen3:
    """A model whose weights are large enough, and its norms far enough from 1, that every part matters."""
    model = Qwen3(config, rngs=nnx.Rngs(threefry(seed)), **options)
    params = nnx.state(model, nnx.Param)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(threefry(seed + 1), len(leaves))
    drawn = [
        jax.random.uniform(key, leaf.shape, leaf.dtype, 0.5, 1.6)
        if leaf.ndim == 1 or leaf.shape[-1:] == leaf.shape[1:]
        else 0.3 * jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    nnx.update(model, jax.tree.unflatten(tree, drawn))
    return model


@partial(jax.jit, static_argnames=("graph", "method"))
def _call(graph: nnx.GraphDef, state: nnx.State, method: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return getattr(nnx.merge(graph, state), method)(*args, **named)


def call(model: Qwen3, *args: Any, method: str = "__call__", **named: Any) -> Any:
    """Call a model's method, compiled once for all models of the same structure."""
    graph, state = nnx.split(model)
    return _call(graph, state, method, args, named)


def file_tensors(config: Qwen3Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors for every key a file of this config must have."""
    rng = np.random.default_rng(seed)
    top, layers = key_table(config)
    rules = [*top.values(), *layers.values()]
    return {key: rng.normal(0, 0.3, rule.shape).astype(np.float32) for rule in rules for key in rule.keys}


def write_folder(
    folder: Path,
    config: Qwen3Config | Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    shards: Sequence[Sequence[str]] = (),
) -> Path:
    """Write a model folder: one file, or one shard for each group of keys, with its index."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = config.to_dict() if isinstance(config, Qwen3Config) else dict(config)
    (folder / "config.json").write_text(json.dumps(entries), encoding="utf-8")
    if not shards:
        save_file(dict(tensors), folder / SINGLE_FILE)
        return folder
    weight_map = {}
    for number, keys in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({key: tensors[key] for key in keys}, folder / name)
        weight_map |= dict.fromkeys(keys, name)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    return folder


def ragged_mask(lengths: Sequence[int], width: int, side: str) -> jax.Array:
    """A bool mask `[len(lengths), width]` with the padding on the given side."""
    mask = np.arange(width)[None] < np.array(lengths)[:, None]
    return jnp.asarray(mask[:, ::-1] if side == "left" else mask)


def write_parity_folder(folder: Path) -> Path:
    """The untied model of the numbers in `golden/qwen3_parity.npz`, RoPE base 1e6."""
    stored = np.load(Path(__file__).parent / "golden" / "qwen3_parity.npz")
    config = Qwen3Config(**json.loads(str(stored["meta"]))["sizes"], rope_theta=1e6, tie_word_embeddings=False)
    weights = {name.removeprefix("weights/"): stored[name] for name in stored.files if name.startswith("weights/")}
    return write_folder(folder, config, weights)
