"""From a model's name to a controller: its trunk, its tokenizer, and what both came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fuyu_jax.controller.controller import Controller
from fuyu_jax.qwen3 import (
    PROJECTIONS,
    LoraSpec,
    Qwen3,
    adapt,
    load_qwen3,
    read_config,
    resolve_model,
    source_sha256,
)
from fuyu_jax.qwen3.locate import TINY
from fuyu_jax.qwen3.quantisation import Quant
from fuyu_jax.tokenizer import load_tokenizer
from vm.prompts import TokenTable, token_table
from vm.types import Settings


@dataclass(frozen=True)
class ModelOptions:
    """How a model's weights are kept, and what of them is trained.

    The embedded model has no pretrained weights: it is trained whole, and only `dtype` concerns it.

    Attributes:
      dtype: what the transformer computes in, "float32" or "bfloat16"; heads, losses and what is trained are float32.
      quant: "none", "int8" or "nf4": how the frozen projections are kept.
      lora_rank: rank of the adapters on the frozen weights; 0 trains the weights themselves.
      lora_alpha: adapters count alpha / rank.
      lora_targets: the projections with an adapter.
    """

    dtype: str = "float32"
    quant: Quant = "none"
    lora_rank: int = 16
    lora_alpha: float = 32.0
    lora_targets: tuple[str, ...] = PROJECTIONS


@dataclass(frozen=True)
class Built:
    """A controller with the tokens of prompts.

    Attributes:
      controller: ready to train.
      tokens: token ids of all prompt fragments.
      source: where the trunk came from, for the manifest: name, folder's digest or the seed, sizes, and how it is kept.
    """

    controller: Controller
    tokens: TokenTable
    source: dict[str, Any]


def build_controller(
    model: str,
    settings: Settings,
    *,
    examples: int,
    show_targets: bool,
    factored: bool = False,
    key: jax.Array,
    options: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    advance: Callable[[int], None] = lambda read: None,
) -> Built:
    """Build a controller around a named model.

    Args:
      model: `tiny`, whose trunk is drawn at random; a folder in Hugging Face layout; or a hub id in the local cache.
      settings: the machine's sizes.
      examples: public examples of a task.
      show_targets: whether the public targets are shown.
      factored: whether kind, slot and value of an edit are chosen independently.
      key: typed key of everything that is drawn at random.
      options: how the weights are kept and trained.
      advance: told the bytes of each tensor as it is read; `weight_bytes` gives their sum.

    Raises:
      ValueError: where the model cannot be found or read, its tokenizer cannot write prompts, or the options ask for
        something it does not have.
    """
    folder = resolve_model(model)
    config = read_config(folder)
    tokens = token_table(load_tokenizer(folder).encode)
    highest = int(tokens.ids.max())
    if highest >= config.vocab_size:
        raise ValueError(
            f"the tokenizer in {folder} gives token {highest}, but its model has {config.vocab_size} embeddings; "
            "use a tokenizer and weights of one model."
        )
    spec = None if model == TINY else _adapters(options)
    trunk = None if model == TINY else _load(folder, options, advance)
    dtype = jnp.dtype(options.dtype)

    def draw(trunk: Qwen3 | None, key: jax.Array) -> Controller:
        rngs = nnx.Rngs(key)
        body = Qwen3(config, rngs=rngs, dtype=dtype) if trunk is None else trunk
        if spec is not None:
            adapt(body, spec.rank, spec.alpha, spec.targets, rngs)
        return Controller(body, settings, examples=examples, show_targets=show_targets, factored=factored, rngs=rngs)

    # One compilation, as drawing each weight on its own would compile each shape; the trunk is handed over, not copied.
    controller = nnx.jit(draw, donate_argnums=0)(trunk, key)
    return Built(
        controller,
        tokens,
        {
            "name": model,
            "weights": "drawn at random" if trunk is None else source_sha256(folder),
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "dtype": options.dtype,
            "quant": options.quant,
            "lora": spec and {"rank": spec.rank, "alpha": spec.alpha, "targets": list(spec.targets)},
        },
    )


def _adapters(options: ModelOptions) -> LoraSpec | None:
    """The adapters that are asked for, None where the weights themselves are to be trained."""
    if options.lora_rank:
        return LoraSpec(options.lora_rank, options.lora_alpha, options.lora_targets)
    if options.quant != "none":
        raise ValueError(f"weights kept as {options.quant} cannot be trained; use a LoRA rank of at least 1.")
    return None


def _load(folder: Path, options: ModelOptions, advance: Callable[[int], None]) -> Qwen3:
    """A folder's model. What is frozen may be as coarse as the computation, what is trained is float32."""
    if options.quant != "none":  # embedding and norms stay as in the file
        return load_qwen3(folder, dtype=options.dtype, quant=options.quant, advance=advance)
    kept = options.dtype if options.lora_rank else "float32"
    return load_qwen3(folder, dtype=options.dtype, param_dtype=jnp.dtype(kept), advance=advance)
