"""From a model's name to a controller: its trunk, its tokenizer, and what both came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from fuyu_jax.controller.controller import Controller
from fuyu_jax.qwen3 import Qwen3, load_qwen3, read_config, resolve_model, source_sha256
from fuyu_jax.qwen3.locate import TINY
from fuyu_jax.tokenizer import load_tokenizer
from vm.prompts import TokenTable, token_table
from vm.types import Settings


@dataclass(frozen=True)
class Built:
    """A controller with the tokens of prompts.

    Attributes:
      controller: ready to train.
      tokens: token ids of all prompt fragments.
      source: where the trunk came from, for the manifest: name, folder's digest or the seed, and its sizes.
    """

    controller: Controller
    tokens: TokenTable
    source: dict[str, Any]


def build_controller(model: str, settings: Settings, *, examples: int, show_targets: bool, key: jax.Array) -> Built:
    """Build a controller around a named model.

    Args:
      model: `tiny`, whose trunk is drawn at random; a folder in Hugging Face layout; or a hub id in the local cache.
      settings: the machine's sizes.
      examples: public examples of a task.
      show_targets: whether the public targets are shown.
      key: typed key of everything that is drawn at random.

    Raises:
      ValueError: where the model cannot be found or read, or its tokenizer cannot write prompts.
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
    trunk = None if model == TINY else load_qwen3(folder)
    weights = "drawn at random" if trunk is None else source_sha256(folder)

    @nnx.jit  # drawing each weight on its own would compile each shape on its own
    def draw(trunk: Qwen3 | None, key: jax.Array) -> Controller:
        rngs = nnx.Rngs(key)
        body = Qwen3(config, rngs=rngs) if trunk is None else trunk
        return Controller(body, settings, examples=examples, show_targets=show_targets, rngs=rngs)

    return Built(
        draw(trunk, key),
        tokens,
        {"name": model, "weights": weights, "layers": config.num_hidden_layers, "hidden_size": config.hidden_size},
    )
