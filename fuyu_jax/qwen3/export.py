"""From a trained model to folders that others open: adapters in PEFT's layout, merged weights in `transformers`'."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from safetensors.numpy import save_file

from fuyu_jax.qwen3.config import ModelError, read_config, read_json
from fuyu_jax.qwen3.layers import PROJECTIONS, layer_shapes
from fuyu_jax.qwen3.lora import LoraSpec, adapt, merged_kernel
from fuyu_jax.qwen3.model import Qwen3
from fuyu_jax.qwen3.quantisation import Int8, Nf4
from fuyu_jax.qwen3.save import SHARD_BYTES, key_shapes, new_folder, write_json, write_weights
from fuyu_jax.qwen3.weights import LAYER_KEYS, Tensor, key_table, list_tensors, read_tensor

ADAPTER_CONFIG, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
# What a model folder holds beside config and weights; each is copied where there is one.
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "LICENSE",
)
# Entries of PEFT's config that would change what the adapters compute, and the values with which they do not.
_PLAIN_LORA: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), ({}, None)),
    **dict.fromkeys(("modules_to_save", "target_parameters", "trainable_token_indices"), ([], {}, None)),
    **dict.fromkeys(("layers_to_transform", "layer_replication", "exclude_modules"), ([], None)),
    **dict.fromkeys(("use_rslora", "use_dora", "use_qalora", "lora_bias", "fan_in_fan_out"), (False, None)),
}


def export_adapters(model: Qwen3, folder: Path, base_name: str) -> None:
    """Write a model's adapters as PEFT does: `adapter_config.json` and `adapter_model.safetensors`, in float32.

    Args:
      model: with adapters.
      folder: must not exist.
      base_name: hub id or folder of the frozen base, which `PeftModel` loads them onto.

    Raises:
      ModelError: where the model has no adapters, or the folder exists or cannot be written.
    """
    spec = model.lora
    if spec is None:
        raise ModelError("the model has no adapters; export it whole.")
    tensors = {}
    for name in spec.targets:
        adapter = model.layers.adapters[name]
        for part, stacked in (("A", adapter.a[...]), ("B", adapter.b[...])):
            for key, array in zip(_adapter_keys(model, name, part), np.asarray(stacked), strict=True):
                tensors[key] = np.ascontiguousarray(array.T)
    with new_folder(folder) as temporary:
        write_json(temporary / ADAPTER_CONFIG, _peft_config(spec, base_name))
        save_file(tensors, temporary / ADAPTER_FILE, metadata={"format": "pt"})


def _adapter_keys(model: Qwen3, name: str, part: str) -> list[str]:
    """PEFT's key of one projection's A or B in each layer."""
    stem = LAYER_KEYS[name].removesuffix(".weight")
    layers = range(model.config.num_hidden_layers)
    return [f"base_model.model.{stem.format(layer=layer)}.lora_{part}.weight" for layer in layers]


def _peft_config(spec: LoraSpec, base_name: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": spec.rank,
        "lora_alpha": int(spec.alpha) if spec.alpha.is_integer() else spec.alpha,
        "target_modules": list(spec.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def load_adapters(model: Qwen3, folder: Path, base_name: str | None = None) -> None:
    """Put the adapters of a folder in PEFT's layout onto a model, in place; nothing is changed where any is refused.

    Args:
      model: with adapters of the same rank, alpha and targets, whose values are replaced; or without any, which gets
        those of the folder and is frozen.
      folder: with `adapter_config.json` and `adapter_model.safetensors`.
      base_name: the base that the adapters must be of; None takes them for those of any.

    Raises:
      ModelError: where a file is absent or damaged, the adapters are not plain LoRA or belong to another base, rank,
        alpha or targets, or a tensor is missing, unknown or of another shape.
    """
    path = folder / ADAPTER_CONFIG
    entries = read_json(path, "adapters have it beside their weights")
    spec = _read_spec(path, entries)
    if base_name is not None and entries.get("base_model_name_or_path") != base_name:
        raise ModelError(f"{path} is of the base {entries.get('base_model_name_or_path')!r}, here it is {base_name!r}.")
    if model.lora is not None:
        for field in ("rank", "alpha", "targets"):
            there, here = getattr(spec, field), getattr(model.lora, field)
            if there != here:
                raise ModelError(f"{path} has LoRA {field} {there}, the model has {here}; make both the same.")
    arrays = _read_adapters(model, spec, folder / ADAPTER_FILE)
    if model.lora is None:
        key = jax.random.key(0, impl="threefry2x32")  # what is drawn from it is replaced
        adapt(model, spec.rank, spec.alpha, spec.targets, nnx.Rngs(key))
    for (name, part), stacked in arrays.items():
        adapter = model.layers.adapters[name]
        (adapter.a if part == "A" else adapter.b).set_value(jnp.asarray(stacked))


def _read_spec(path: Path, entries: Mapping[str, Any]) -> LoraSpec:
    """The adapters that a config of PEFT describes."""
    if entries.get("peft_type") != "LORA":
        raise ModelError(f"{path} is of peft_type {entries.get('peft_type')!r}; only 'LORA' can be loaded.")
    for name, harmless in _PLAIN_LORA.items():
        if entries.get(name) not in harmless:
            raise ModelError(f"{path} has {name} {entries[name]!r}, which is not supported; use plain LoRA.")
    targets = entries.get("target_modules")
    if not isinstance(targets, list) or not all(isinstance(name, str) for name in targets):
        raise ModelError(f"{path} has target_modules {targets!r}; list the names of projections.")
    rank, alpha = entries.get("r"), entries.get("lora_alpha")
    if not isinstance(rank, int) or not isinstance(alpha, int | float):
        raise ModelError(f"{path} has r {rank!r} and lora_alpha {alpha!r}; both are numbers, r a whole one.")
    try:
        return LoraSpec(rank, float(alpha), tuple(targets))
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from None


def _read_adapters(model: Qwen3, spec: LoraSpec, path: Path) -> dict[tuple[str, str], np.ndarray]:
    """The stacked float32 adapters by projection and "A" or "B", turned to `(in, rank)` and `(rank, out)`."""
    tensors = dict(list_tensors(path))
    wanted: dict[str, tuple[int, int]] = {}
    groups = {}
    for name in spec.targets:
        width_in, width_out = layer_shapes(model.config)[name]
        for part, shape in (("A", (spec.rank, width_in)), ("B", (width_out, spec.rank))):
            groups[name, part] = _adapter_keys(model, name, part)
            wanted |= dict.fromkeys(groups[name, part], shape)
    _check_keys(path, tensors, wanted)
    return {
        group: np.stack([read_tensor(tensors, key).T.astype(np.float32) for key in keys])
        for group, keys in groups.items()
    }


def _check_keys(path: Path, tensors: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, int]]) -> None:
    for key, shape in wanted.items():
        if key not in tensors:
            raise ModelError(f"{key!r} is missing from {path}; these are adapters of another model.")
        if tensors[key].shape != shape:
            raise ModelError(f"{key!r} in {path} has shape {tensors[key].shape}, the model asks for {shape}.")
    for key in tensors:
        if key not in wanted:
            raise ModelError(f"{key!r} in {path} belongs to no adapter of this model; these are of another one.")


def export_merged(
    model: Qwen3, source: Path, folder: Path, dtype: DTypeLike = jnp.bfloat16, shard_bytes: int = SHARD_BYTES
) -> str:
    """Write a model with its adapters merged into its weights, as a folder that `transformers` opens.

    Merging happens in float32, tensor by tensor, and is then rounded to `dtype`; the model stays as it is. A quantised
    base is dequantised: the folder gives the outputs of the model as it was trained, on the coarse base, and not those
    of the adapters on the original weights. It is never quantised again, which would round small updates away.

    Args:
      model: with adapters or, trained whole, without.
      source: folder of the base model, whose config and tokenizer are copied.
      folder: must not exist.
      dtype: of the weights in the files: bfloat16, float16, or float32 for the exact sums.
      shard_bytes: largest size of a file, unless one tensor alone is larger.

    Returns:
      What was written, in words.

    Raises:
      ModelError: where `source` is of another model, or the folder exists or cannot be written.
    """
    if read_config(source) != model.config:
        raise ModelError(f"{source / 'config.json'} is not the config of this model; give the folder of its base.")
    entries = read_json(source / "config.json", "a model folder holds it")
    with new_folder(folder) as temporary:
        places = _places(model)
        write_weights(temporary, key_shapes(model.config), lambda key: _tensor(model, *places[key]), dtype, shard_bytes)
        name = "torch_dtype" if "torch_dtype" in entries else "dtype"  # the older and the newer name
        write_json(temporary / "config.json", {**entries, name: np.dtype(dtype).name})
        for companion in COMPANIONS:
            if (source / companion).is_file():
                shutil.copyfile(source / companion, temporary / companion)
    return f"{_in_words(model)}, in {np.dtype(dtype).name}."


def _places(model: Qwen3) -> dict[str, tuple[str, int | None]]:
    """Our name and the layer of each tensor, by its key in the file."""
    top, layers = key_table(model.config)
    places: dict[str, tuple[str, int | None]] = {rule.keys[0]: (name, None) for name, rule in top.items()}
    return places | {key: (name, layer) for name, rule in layers.items() for layer, key in enumerate(rule.keys)}


def _tensor(model: Qwen3, name: str, layer: int | None) -> Iterator[np.ndarray]:
    """One tensor as files have it: kernels are (out, in) there."""
    if layer is None:
        array = getattr(model, name)[...]
        yield np.asarray(array.T if key_table(model.config)[0][name].transpose else array)
    elif name in PROJECTIONS:
        yield np.asarray(merged_kernel(model, name, layer).T)
    else:
        yield np.asarray(getattr(model.layers, name)[...][layer])


def _in_words(model: Qwen3) -> str:
    """What the weights of a merged folder are made of."""
    kinds = {type(getattr(model.layers, name).get_value()) for name in PROJECTIONS}
    coarse = {Nf4: "4 bits (nf4)", Int8: "8 bits (int8)"}
    base = next((f"weights dequantised from {coarse[kind]}" for kind in kinds if kind in coarse), "weights")
    if model.lora is None:
        return f"the model's {base}"
    return f"adapters of rank {model.lora.rank} merged into the base's {base}"
