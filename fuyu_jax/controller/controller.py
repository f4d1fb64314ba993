"""The controller: a Qwen3 trunk between dense state tokens and the heads that pick one edit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
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
        factored: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        """Put state tokens and heads, drawn from `rngs`, around a trunk.

        Args:
          trunk: the transformer, taken as it is.
          settings: the machine's sizes.
          examples: public examples of a task.
          show_targets: whether states also show the public targets.
          factored: choose kind, slot and value independently, with `FactoredHeads`.
          rngs: source of the initial weights.
        """
        hidden, scale = trunk.config.hidden_size, trunk.config.initializer_range
        self.trunk = trunk
        self.embedder = StateEmbedder(settings, examples, hidden, scale=scale, show_targets=show_targets, rngs=rngs)
        self.heads = Heads(settings, examples, hidden, factored=factored, rngs=rngs)

    def prompt(self, ids: jax.Array, mask: jax.Array, positions: jax.Array | None = None) -> PromptCache:
        """Keys and values of prompts: int32 `[B, P]` tokens and bool `[B, P]`, true for real tokens.

        `positions` are rising int32 `[B, P]`; by default real tokens are counted.
        """
        return self.trunk.prefill(self.trunk.embed(ids), mask, positions)

    def read(self, seen: Observation, cache: PromptCache, targets: Value | None = None) -> Readout:
        """Read S states behind each of B prompts: observations `[B, S]` to a `Readout` `[B, S]`.

        `targets` is `Value[B, S, E]`, for a controller that may see the public targets.
        """
        tokens = self.embedder(seen, targets)  # [B, S, E + L + 2, hidden]
        return self._judge(self.trunk.extend(tokens, cache))

    def read_in_full(
        self,
        seen: Observation,
        ids: jax.Array,
        mask: jax.Array,
        positions: jax.Array,
        targets: Value | None = None,
    ) -> Readout:
        """What `read` gives, by one full pass over each state's own sequence: its prompt, then its tokens.

        `ids` int32 `[B, P]`, `mask` bool `[B, P]` and `positions` int32 `[B, P]` are the prompts, padding on any side.
        """
        tokens = self.embedder(seen, targets)  # [B, S, N, hidden]
        batch, states, length, width = tokens.shape
        prompt = self.trunk.embed(ids)[:, None].astype(tokens.dtype)  # [B, 1, P, hidden]
        prompts = jnp.broadcast_to(prompt, (batch, states, *prompt.shape[2:]))
        real = jnp.broadcast_to(mask.astype(bool)[:, None], (batch, states, mask.shape[1]))
        sequence = jnp.concatenate([prompts, tokens], axis=2).reshape(batch * states, -1, width)
        whole_mask = jnp.concatenate([real, jnp.ones((batch, states, length), bool)], axis=2)
        end = jnp.max(jnp.where(mask, positions, -1), axis=1, keepdims=True) + 1
        places = jnp.concatenate([positions, end + jnp.arange(length, dtype=jnp.int32)[None]], axis=1)  # [B, P + N]
        hidden = self.trunk(
            inputs_embeds=sequence,
            attention_mask=whole_mask.reshape(batch * states, -1),
            positions=jnp.repeat(places, states, axis=0),
        )
        return self._judge(hidden[:, -length:].reshape(batch, states, length, width))

    def _judge(self, hidden: jax.Array) -> Readout:
        """The heads on final hidden states `[B, S, N, hidden]`, in float32 whatever the trunk computes in."""
        return self.heads(hidden.astype(jnp.float32))

    def echo(self, readout: Readout, action: jax.Array) -> Echo:
        """Predict the outputs that follow each state's edit; `action` is int32 `[B, S]`, flat, not STOP."""
        return self.heads.echo(readout, action)
