"""The controller: a Qwen3 trunk between dense state tokens and the heads that pick one edit."""

from __future__ import annotations

import jax
from flax import nnx

from fuyu_jax.controller.heads import Echo, Heads, Readout
from fuyu_jax.controller.state_tokens import StateEmbedder
from fuyu_jax.qwen3 import PromptCache, Qwen3
from vm.observation import Observation
from vm.types import Settings, Value


class Controller(nnx.Module):
    """Reads a prompt once, then any number of machine states behind it.

    A state's tokens see the prompt and each other (causally), never another state: rollouts of a group and steps of a
    trajectory share one prompt, and each still gets what a full pass over its prompt and its own tokens would give.
    """

    def __init__(
        self,
        trunk: Qwen3,
        settings: Settings,
        *,
        examples: int,
        show_targets: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        """Put state tokens and heads, drawn from `rngs`, around a trunk.

        Args:
          trunk: the transformer, taken as it is.
          settings: the machine's sizes.
          examples: public examples of a task.
          show_targets: whether states also show the public targets.
          rngs: source of the initial weights.
        """
        hidden, scale = trunk.config.hidden_size, trunk.config.initializer_range
        self.trunk = trunk
        self.embedder = StateEmbedder(settings, examples, hidden, scale=scale, show_targets=show_targets, rngs=rngs)
        self.heads = Heads(settings, examples, hidden, rngs=rngs)

    def prompt(self, ids: jax.Array, mask: jax.Array) -> PromptCache:
        """Keys and values of prompts: int32 `[B, P]` tokens and bool `[B, P]`, true for real tokens."""
        return self.trunk.prefill(self.trunk.embed(ids), mask)

    def read(self, seen: Observation, cache: PromptCache, targets: Value | None = None) -> Readout:
        """Read S states behind each of B prompts: observations `[B, S]` to a `Readout` `[B, S]`.

        `targets` is `Value[B, S, E]`, for a controller that may see the public targets.
        """
        tokens = self.embedder(seen, targets)  # [B, S, E + L + 2, hidden]
        return self.heads(self.trunk.extend(tokens, cache))

    def echo(self, readout: Readout, action: jax.Array) -> Echo:
        """Predict the outputs that follow each state's edit; `action` is int32 `[B, S]`, flat, not STOP."""
        return self.heads.echo(readout, action)
