"""Sizes of a Qwen3 model, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)


class ModelError(ValueError):
    """A model folder that cannot be used; the message is one sentence that names the file or entry and the cause."""


@dataclass(frozen=True)
class Qwen3Config:
    """Static sizes of a dense Qwen3 decoder, named as in `config.json`. Hashable.

    Attributes:
      vocab_size: rows of the embedding (V); may exceed the tokenizer's length.
      hidden_size: width of the residual stream (d).
      intermediate_size: width of the SwiGLU block (F).
      num_hidden_layers: decoder layers.
      num_attention_heads: query heads (H).
      num_key_value_heads: key/value heads (Hkv); H is a multiple of it.
      head_dim: width of one head (D); its own number, not hidden_size / num_attention_heads.
      rope_theta: base of the rotary frequencies.
      rms_norm_eps: added to the mean square in every norm.
      tie_word_embeddings: whether the output head is the embedding.
      initializer_range: standard deviation of freshly drawn weights.

    Raises:
      ModelError: where a size is not positive, heads do not group evenly, or `head_dim` is odd.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        """Refuse sizes that no Qwen3 can have."""
        for name in _SIZES:
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ModelError(f"{name} is {size!r}; a Qwen3 config needs a positive whole number there.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}; every key/value head serves the same number of query heads."
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary embeddings turn pairs, so use an even number.")
        for name in ("rope_theta", "rms_norm_eps"):
            if not getattr(self, name) > 0:
                raise ModelError(f"{name} is {getattr(self, name)!r}; use a number above 0.")

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Qwen3Config:
        """Read the entries of a `config.json`, with the RoPE base under `rope_theta` or in `rope_parameters`.

        Raises:
          ModelError: where an entry is missing, or asks for something this port does not compute.
        """
        _check_kinds(entries)
        _refuse_unsupported(entries)
        missing = [name for name in _SIZES if entries.get(name) is None]
        if missing:
            raise ModelError(f"{missing[0]!r} is missing; add it, a Qwen3 config states it as a number.")
        rope = entries.get("rope_parameters") or {}
        theta = rope.get("rope_theta", entries.get("rope_theta"))
        if theta is None:
            raise ModelError("both 'rope_theta' and 'rope_parameters' are missing; add the RoPE base.")
        return cls(
            **{name: entries[name] for name in _SIZES},
            rope_theta=_number("rope_theta", theta),
            rms_norm_eps=_number("rms_norm_eps", entries.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(entries.get("tie_word_embeddings", False)),
            initializer_range=_number("initializer_range", entries.get("initializer_range", 0.02)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The entries of a `config.json` that `transformers` reads as the same model."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **{name: getattr(self, name) for name in _SIZES},
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "initializer_range": self.initializer_range,
            "hidden_act": "silu",
            "attention_bias": False,
            "use_sliding_window": False,
        }


def _check_kinds(entries: Mapping[str, Any]) -> None:
    """Refuse text or a number where an entry holds further entries."""
    for name in ("rope_parameters", "rope_scaling"):
        value = entries.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ModelError(f"{name} is {value!r}; use an object with a 'rope_type', or null.")
    layers = entries.get("layer_types")
    if layers is not None and not isinstance(layers, list | tuple):
        raise ModelError(f"layer_types is {layers!r}; use a list with a name for each layer, or null.")


def _number(name: str, value: Any) -> float:
    """An entry as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{name} is {value!r}; use a number.")
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ModelError(f"{name} is not finite; use a number above 0.")
    return number


def _refuse_unsupported(entries: Mapping[str, Any]) -> None:
    """Stop at the first entry that changes what the model computes and that this port does not follow."""
    model_type = entries.get("model_type")
    if model_type != "qwen3":
        raise ModelError(f"model_type is {model_type!r}; only dense 'qwen3' models are supported.")
    if entries.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act {entries['hidden_act']!r} is not supported; Qwen3 uses 'silu'.")
    if entries.get("attention_bias"):
        raise ModelError("attention_bias true is not supported; Qwen3's projections have no bias.")
    rope = entries.get("rope_parameters") or {}
    scaling = entries.get("rope_scaling") or {}
    rope_type = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if rope_type != "default":
        raise ModelError(f"RoPE scaling {rope_type!r} is not supported; use a config with plain RoPE.")
    sliding = entries.get("use_sliding_window") and entries.get("sliding_window") is not None
    if sliding or "sliding_attention" in (entries.get("layer_types") or ()):
        raise ModelError("sliding-window attention is not supported; use a config with use_sliding_window false.")


def read_config(folder: str | Path) -> Qwen3Config:
    """Read `config.json` in a model folder.

    Raises:
      ModelError: where the file is absent or not JSON, lacks an entry, or asks for something unsupported; the sentence
        begins with the file's path.
    """
    path = Path(folder) / "config.json"
    entries = read_json(path, "a model folder holds config.json beside its weights")
    try:
        return Qwen3Config.from_dict(entries)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def read_json(path: Path, role: str) -> dict[str, Any]:
    """A JSON object from a file; `role` ends the sentence that an absent file is refused with."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; {role}.") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder, not a file; {role}.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); {role}.") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error}); copy the file again.") from None
    if not isinstance(entries, dict):
        raise ModelError(f"{path} holds a JSON {type(entries).__name__}, not an object; copy the file again.")
    return entries
