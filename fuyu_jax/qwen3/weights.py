"""Loading Qwen3 weights from safetensors in Hugging Face layout: every tensor accounted for, nothing pickled."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from fuyu_jax.qwen3.config import ModelError, Qwen3Config, read_config, read_json
from fuyu_jax.qwen3.layers import PROJECTIONS, layer_shapes
from fuyu_jax.qwen3.lora import freeze
from fuyu_jax.qwen3.model import Qwen3
from fuyu_jax.qwen3.quantisation import QUANTS, Int8, Kind, Nf4, Quant, quantise, quantised_shapes

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING, FINAL_NORM, HEAD = "embed_tokens", "norm", "lm_head"

# Our name of a weight and its key in the file; kernels are stored (out, in) there and transposed here.
TOP_KEYS = {EMBEDDING: "model.embed_tokens.weight", FINAL_NORM: "model.norm.weight", HEAD: "lm_head.weight"}
LAYER_KEYS = {
    "input_norm": "model.layers.{layer}.input_layernorm.weight",
    "q_proj": "model.layers.{layer}.self_attn.q_proj.weight",
    "k_proj": "model.layers.{layer}.self_attn.k_proj.weight",
    "v_proj": "model.layers.{layer}.self_attn.v_proj.weight",
    "q_norm": "model.layers.{layer}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{layer}.self_attn.k_norm.weight",
    "o_proj": "model.layers.{layer}.self_attn.o_proj.weight",
    "post_attention_norm": "model.layers.{layer}.post_attention_layernorm.weight",
    "gate_proj": "model.layers.{layer}.mlp.gate_proj.weight",
    "up_proj": "model.layers.{layer}.mlp.up_proj.weight",
    "down_proj": "model.layers.{layer}.mlp.down_proj.weight",
}
_DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(jnp.bfloat16)}

Advance = Callable[[int], None]
_LFS_POINTER = b"version https://git-lfs"


class Tensor(NamedTuple):
    """Where a tensor of the model lies, and its shape and dtype there."""

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Rule:
    """How one array of ours is made from the file.

    Attributes:
      keys: one key, or one a layer, stacked in this order.
      shape: shape of each tensor in the file.
      transpose: whether each tensor is turned from (out, in) to (in, out).
    """

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    transpose: bool


def key_table(config: Qwen3Config) -> tuple[dict[str, Rule], dict[str, Rule]]:
    """The rules of the arrays outside the layers, and of the stacked layers, by our names."""
    table = (config.vocab_size, config.hidden_size)
    top = {
        EMBEDDING: Rule((TOP_KEYS[EMBEDDING],), table, transpose=False),
        FINAL_NORM: Rule((TOP_KEYS[FINAL_NORM],), table[1:], transpose=False),
    }
    if not config.tie_word_embeddings:
        top[HEAD] = Rule((TOP_KEYS[HEAD],), table, transpose=True)
    layers = {}
    for name, shape in layer_shapes(config).items():
        keys = tuple(LAYER_KEYS[name].format(layer=layer) for layer in range(config.num_hidden_layers))
        layers[name] = Rule(keys, shape[::-1], transpose=len(shape) == 2)
    return top, layers


def load_qwen3(
    folder: str | Path,
    dtype: DTypeLike = jnp.float32,
    param_dtype: DTypeLike | None = None,
    remat: bool = True,
    quant: Quant = "none",
    advance: Advance = lambda read: None,
) -> Qwen3:
    """Load a model from a folder with `config.json` and safetensors in one file or in shards with an index.

    All keys, shapes and dtypes are checked before the first tensor is read; tensors are then read one by one. With
    `quant` each projection of each layer is quantised as soon as it is read, so that no projection is ever whole in
    memory for more than one layer, and every weight of the model is frozen.

    Args:
      folder: the model's folder.
      dtype: dtype of the computation.
      param_dtype: dtype of the weights that are not quantised, whatever the file's (bfloat16, float16 or float32). None
        is float32 without `quant`, and as in the file with it.
      remat: as in `Qwen3`.
      quant: how the projections are kept: "none", "int8" or "nf4". Embedding, norms and head are never quantised.
      advance: is called with the number of bytes of each tensor after it was read; `weight_bytes` tells their sum.

    Raises:
      ModelError: where the config is not supported, a file is absent, cut short or not safetensors, a key is missing,
        unknown or of another shape, or a weight to be quantised is not finite.
      ValueError: where `quant` is unknown.
    """
    if quant not in QUANTS:
        raise ValueError(f"quant is {quant!r}; use one of {', '.join(QUANTS)}.")
    folder = Path(folder)
    config = read_config(folder)
    top, layers = key_table(config)
    tensors = find_tensors(folder)
    _check_complete(config, {**top, **layers}, tensors)
    plain = jnp.float32 if quant == "none" else None
    reader = Reader(tensors, param_dtype or plain, advance)
    model = nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0), dtype=dtype, remat=remat))
    if quant != "none":
        freeze(model)
    for name, rule in top.items():
        getattr(model, name).set_value(reader.single(rule))
    for name, rule in layers.items():
        value = reader.stacked(rule) if quant == "none" or name not in PROJECTIONS else reader.quantised(rule, quant)
        getattr(model.layers, name).set_value(value)
    return model


def weight_bytes(folder: str | Path) -> int:
    """Bytes of all tensors that `load_qwen3` reads from a folder.

    Raises:
      ModelError: as `load_qwen3`.
    """
    folder = Path(folder)
    top, layers = key_table(read_config(folder))
    tensors = find_tensors(folder)
    return sum(tensors[key].size for rule in (*top.values(), *layers.values()) for key in rule.keys if key in tensors)


def source_sha256(folder: str | Path) -> str:
    """SHA-256 of a model's source: of the lines `digest  name` of its config and weight files, sorted by name."""
    files = [Path(folder) / "config.json", *_weight_files(Path(folder))]
    lines = []
    for path in sorted(files, key=lambda path: path.name):
        with path.open("rb") as stream:
            lines.append(f"{hashlib.file_digest(stream, 'sha256').hexdigest()}  {path.name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def find_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the model in a folder, by key; files that do not belong to the model are ignored.

    Raises:
      ModelError: where there are no safetensors, a file is absent or damaged, a dtype is not a plain float, or index
        and shards disagree.
    """
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        for key, tensor in list_tensors(path):
            if key in tensors:
                raise ModelError(f"{key!r} is in both {tensors[key].file} and {path.name}; remove one of the two.")
            tensors[key] = tensor
    if not (folder / SINGLE_FILE).exists():
        _check_index(folder / INDEX_FILE, tensors)
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: the single file, else the shards that the index names."""
    if (folder / SINGLE_FILE).exists():
        return [folder / SINGLE_FILE]
    if not (folder / INDEX_FILE).exists():
        pickled = sorted(path.name for end in ("*.bin", "*.pt", "*.pth") for path in folder.glob(end))
        found = f" ({pickled[0]} is pickled and is never opened; convert it to safetensors)" if pickled else ""
        raise ModelError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}{found}; copy the weights there.")
    names = sorted(set(_weight_map(folder / INDEX_FILE).values()))
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{folder / INDEX_FILE} names a shard outside its folder: {name!r}; copy the index again.")
        if not (folder / name).exists():
            raise ModelError(f"{folder / name} is missing though {INDEX_FILE} names it; finish the download.")
    return [folder / name for name in names]


def _weight_map(index: Path) -> dict[str, str]:
    """The key-to-shard table of an index file."""
    weight_map = read_json(index, "a sharded model has an index").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index} has no 'weight_map' from keys to file names; copy the index again.")
    return weight_map


def _check_index(index: Path, tensors: dict[str, Tensor]) -> None:
    """Refuse an index and shards that do not name the same tensors in the same places."""
    weight_map = _weight_map(index)
    for key, name in weight_map.items():
        if key not in tensors or tensors[key].file.name != name:
            raise ModelError(f"{index} places {key!r} in {name}, which lacks it; index and shards are of two models.")
    for key, tensor in tensors.items():
        if key not in weight_map:
            raise ModelError(f"{tensor.file} holds {key!r}, which {index.name} does not list; copy the index again.")


def list_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Keys and places of the tensors of one safetensors file, from its header.

    Raises:
      ModelError: where it is absent or damaged, or a dtype is not a plain float.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_LFS_POINTER))
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder, not a file; put the weights' file in its place.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); download it again.") from None
    if not start:
        raise ModelError(f"{path} is empty; download it again.")
    if start == _LFS_POINTER:
        raise ModelError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder.")
    try:
        with safe_open(path, framework="numpy") as file:
            for key in file.keys():  # noqa: SIM118 (a safetensors handle is not a mapping)
                view = file.get_slice(key)
                if view.get_dtype() not in _DTYPES:
                    raise ModelError(
                        f"{key!r} in {path} is {view.get_dtype()}; only unquantised {', '.join(_DTYPES)} can be loaded."
                    )
                yield key, Tensor(path, tuple(view.get_shape()), _DTYPES[view.get_dtype()])
    except SafetensorError as error:
        raise ModelError(f"{path} is cut short or not safetensors ({error}); download it again.") from None


def _check_complete(config: Qwen3Config, rules: dict[str, Rule], tensors: dict[str, Tensor]) -> None:
    """Refuse a missing, unknown or differently shaped tensor, and a stored head that a tied config contradicts."""
    needed = {key: rule.shape for rule in rules.values() for key in rule.keys}
    head = TOP_KEYS[HEAD]
    for key, shape in needed.items():
        if key not in tensors:
            where = next(iter(tensors.values())).file.parent if tensors else "the folder"
            advice = (
                "config.json says the head is not tied; set tie_word_embeddings to true if this model has none"
                if key == head
                else "download them again"
            )
            raise ModelError(f"{key!r} is missing from the weights in {where}; {advice}.")
        if tensors[key].shape != shape:
            raise ModelError(
                f"{key!r} in {tensors[key].file} has shape {tensors[key].shape}, config.json asks for {shape}; "
                "config and weights are of two models."
            )
    unknown = [key for key in tensors if key not in needed and not (key == head and config.tie_word_embeddings)]
    if unknown:
        raise ModelError(
            f"{unknown[0]!r} in {tensors[unknown[0]].file} belongs to no weight of this Qwen3 ({len(unknown)} such "
            "keys); config and weights are of two models."
        )
    embedding = TOP_KEYS[EMBEDDING]
    if head in tensors and config.tie_word_embeddings:
        stored, tied = (read_tensor(tensors, key) for key in (head, embedding))
        if not np.array_equal(stored, tied):
            raise ModelError(
                f"{head!r} differs from {embedding!r} though config.json ties them; set tie_word_embeddings to false "
                "to use it."
            )


class Reader:
    """Makes our arrays from tensors of the file, with one tensor in memory at a time."""

    def __init__(self, tensors: dict[str, Tensor], dtype: DTypeLike | None, advance: Advance) -> None:
        """Read arrays in `dtype`, or in the file's where it is None; `advance` is told the bytes of each tensor."""
        self.tensors = tensors
        self.dtype = dtype
        self.advance = advance

    def single(self, rule: Rule) -> jax.Array:
        """The array of a rule with one key."""
        (tensor,) = self._read_all(rule)
        return jnp.asarray(tensor.T if rule.transpose else tensor, self.dtype)

    def stacked(self, rule: Rule) -> jax.Array:
        """The array of a rule with a key for each layer, `[layers, ...]`."""
        dtype = self.dtype or jnp.result_type(*(self.tensors[key].dtype for key in rule.keys))
        shape = rule.shape[::-1] if rule.transpose else rule.shape
        stacked = np.empty((len(rule.keys), *shape), dtype)
        for slot, tensor in zip(stacked, self._read_all(rule), strict=True):
            slot[...] = tensor.T if rule.transpose else tensor
        return jnp.asarray(stacked)

    def quantised(self, rule: Rule, kind: Kind) -> Nf4 | Int8:
        """The quantised kernels of a rule, stacked as they are read.

        Raises:
          ModelError: where a weight is not finite.
        """
        shapes = quantised_shapes(kind, (len(rule.keys), *rule.shape[::-1]))
        stacked = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        finite = []
        for layer, tensor in enumerate(self._read_all(rule)):
            jax.block_until_ready(stacked)  # one matrix is read while one is quantised; more would pile up
            stacked, all_finite = _put_layer(stacked, tensor, np.int32(layer), kind)
            finite.append(all_finite)
        for key, all_finite in zip(rule.keys, finite, strict=True):
            if not all_finite:
                raise ModelError(f"{key!r} in {self.tensors[key].file} holds infinities or NaN; download it again.")
        return stacked

    def _read_all(self, rule: Rule) -> Iterator[np.ndarray]:
        for key in rule.keys:
            yield read_tensor(self.tensors, key)
            self.advance(self.tensors[key].size)


@partial(jax.jit, static_argnames="kind", donate_argnums=0)
def _put_layer(stacked: Nf4 | Int8, tensor: jax.Array, layer: jax.Array, kind: Kind) -> tuple[Nf4 | Int8, jax.Array]:
    """Quantise one kernel, stored as (out, in), into its place among the stacked ones, without a second stack.

    The bool tells whether all of it is finite.
    """
    quantised = quantise(tensor.T, kind)
    stacked = jax.tree.map(lambda leaf, part: leaf.at[layer].set(part), stacked, quantised)
    return stacked, jnp.all(jnp.isfinite(tensor))


def read_tensor(tensors: dict[str, Tensor], key: str) -> np.ndarray:
    """One tensor; its file is mapped only while it is read, so that mapped pages do not add up."""
    with safe_open(tensors[key].file, framework="numpy") as file:
        return file.get_tensor(key)
