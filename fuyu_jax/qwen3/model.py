"""Qwen3 as a Flax NNX module: stacked weights on the surface, one pure layer function under `lax.scan` inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from fuyu_jax.qwen3.config import Qwen3Config
from fuyu_jax.qwen3.layers import (
    Adapted,
    KeyValues,
    LayerWeights,
    decoder_layer,
    layer_shapes,
    project,
    rms_norm,
    rope_angles,
)

if TYPE_CHECKING:
    from fuyu_jax.qwen3.lora import Adapter, LoraSpec


class PromptCache(NamedTuple):
    """Keys and values of encoded prompts, for segments that follow them.

    Attributes:
      k: keys after norm and RoPE, `[layers, B, P, Hkv, D]`.
      v: values, `[layers, B, P, Hkv, D]`.
      mask: bool `[B, P]`, True at real tokens.
      end: int32 `[B]`, position of the token that would come next; a segment's positions start here.
    """

    k: jax.Array
    v: jax.Array
    mask: jax.Array
    end: jax.Array

    def widened(self, tokens: int) -> PromptCache:
        """The same cache with free columns for further tokens behind those there are."""
        k, v = (jnp.pad(a, [(0, 0), (0, 0), (0, tokens), (0, 0), (0, 0)]) for a in (self.k, self.v))
        return PromptCache(k, v, jnp.pad(self.mask, [(0, 0), (0, tokens)]), self.end)


def token_positions(mask: jax.Array) -> jax.Array:
    """Position of each token counted over real tokens only: int32 `[B, T]` from a bool mask `[B, T]`.

    The first real token is 0 wherever the padding stands; padding repeats the position before it, at least 0.
    """
    return jnp.maximum(jnp.cumsum(mask.astype(jnp.int32), axis=-1) - 1, 0)


class DecoderLayers(nnx.Module):
    """All decoder layers: one variable for each weight of `LayerWeights`, stacked as `[layers, ...]`.

    A variable is an `nnx.Param`, which is trained, or of another type, which is frozen and may hold a quantised kernel.
    `adapters` holds the LoRA adapter of each projection that has one, by its name.
    """

    def __init__(self, config: Qwen3Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike) -> None:
        """Draw kernels from a normal distribution and set norms to 1."""
        for name, shape in layer_shapes(config).items():
            stacked = (config.num_hidden_layers, *shape)
            if name.endswith("_norm"):
                value = jnp.ones(stacked, param_dtype)
            else:
                value = _normal(rngs, stacked, config, param_dtype)
            setattr(self, name, nnx.Param(value))
        self.adapters: nnx.Dict[Adapter] = nnx.Dict()

    def weights(self) -> LayerWeights:
        """The raw stacked weights; no gradient reaches the frozen ones."""
        return LayerWeights(*(self._weight(name) for name in LayerWeights._fields))

    def _weight(self, name: str) -> Any:
        variable = getattr(self, name)
        value = variable.get_value()
        if not isinstance(variable, nnx.Param):
            value = jax.lax.stop_gradient(value)
        if name not in self.adapters:
            return value
        adapter = self.adapters[name]
        return Adapted(value, adapter.a[...], adapter.b[...], adapter.scale)


class Qwen3(nnx.Module):
    """Decoder-only transformer of the dense Qwen3 family.

    `nnx.split` it once and `jax.jit` a function of its state: all methods are pure in the parameters. `lora` tells the
    adapters it has, None without any.

    Args:
      config: sizes.
      rngs: source of the initial weights, e.g. `nnx.Rngs(jax.random.key(0, impl="threefry2x32"))`.
      dtype: dtype of the computation; RoPE phases, norm statistics and softmax stay float32 in any case.
      param_dtype: dtype of the parameters.
      remat: recompute each layer in the backward pass instead of storing its inner activations.
    """

    def __init__(
        self,
        config: Qwen3Config,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
        remat: bool = True,
    ) -> None:
        """Draw fresh weights as Hugging Face does: normal with `initializer_range`, norms 1."""
        self.config = config
        self.dtype = jnp.dtype(dtype)
        self.remat = remat
        self.lora: LoraSpec | None = None
        table = (config.vocab_size, config.hidden_size)
        self.embed_tokens = nnx.Param(_normal(rngs, table, config, param_dtype))
        self.layers = DecoderLayers(config, rngs=rngs, param_dtype=param_dtype)
        self.norm = nnx.Param(jnp.ones(config.hidden_size, param_dtype))
        if not config.tie_word_embeddings:
            self.lm_head = nnx.Param(_normal(rngs, table[::-1], config, param_dtype))

    def embed(self, input_ids: jax.Array) -> jax.Array:
        """Embeddings `[B, T, d]` of int32 token ids `[B, T]`, in the compute dtype."""
        chex.assert_rank(input_ids, 2)
        return self.embed_tokens[...][input_ids].astype(self.dtype)

    def __call__(
        self,
        input_ids: jax.Array | None = None,
        inputs_embeds: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Final hidden states `[B, T, d]` of a causal pass.

        Args:
          input_ids: int32 `[B, T]`; give either these or `inputs_embeds`.
          inputs_embeds: `[B, T, d]`.
          attention_mask: bool or 0/1 `[B, T]`, true at real tokens, padding on any side; all real by default.
          positions: int32 `[B, T]`; by default real tokens are counted from 0.

        Raises:
          ValueError: where both or neither of ids and embeddings are given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            given = "both" if inputs_embeds is not None else "neither"
            raise ValueError(f"{given} of input_ids and inputs_embeds given; give exactly one of them.")
        x = self.embed(input_ids) if input_ids is not None else inputs_embeds
        assert x is not None
        mask = jnp.ones(x.shape[:2], bool) if attention_mask is None else attention_mask
        return self._full_pass(x, mask, positions)[0]

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Scores of the next token, `[..., V]`, from final hidden states `[..., d]`.

        Rows past the tokenizer's length belong to no token; slice them off before sampling or scoring.
        """
        if self.config.tie_word_embeddings:
            return hidden @ self.embed_tokens[...].astype(hidden.dtype).T
        return project(hidden, self.lm_head[...])

    def prefill(self, inputs_embeds: jax.Array, mask: jax.Array, positions: jax.Array | None = None) -> PromptCache:
        """Encode prompts once: embeddings `[B, P, d]` and their mask `[B, P]`, padding on any side.

        `positions` are rising int32 `[B, P]`; by default real tokens are counted from 0.
        """
        real = mask.astype(bool)
        places = token_positions(real) if positions is None else positions
        _, layers = self._full_pass(inputs_embeds, mask, places)
        end = jnp.max(jnp.where(real, places, -1), axis=-1) + 1
        return PromptCache(layers.keys, layers.values, real, end)

    def extend(self, segments: jax.Array, cache: PromptCache) -> jax.Array:
        """Final hidden states of independent segments that each follow their prompt.

        Segment s of prompt b sees the real tokens of prompt b and, causally, itself; never another segment. The
        result is that of a full pass over `[prompt ; segment]`, and gradients flow into the cache.

        Args:
          segments: embeddings `[B, S, N, d]`.
          cache: of the B prompts, from `prefill`.

        Returns:
          `[B, S, N, d]`.
        """
        return self._follow(segments, cache)[0]

    def decode(self, tokens: jax.Array, cache: PromptCache, place: jax.Array) -> tuple[jax.Array, PromptCache]:
        """Read one more token of each sequence and keep its keys and values.

        Args:
          tokens: embeddings `[B, d]`.
          cache: of the B sequences so far; `PromptCache.widened` makes places for tokens to come.
          place: int32 `[]`, the cache's column that the token goes to; nothing real may stand there.

        Returns:
          Final hidden states `[B, d]`, and the cache with the token in it.
        """
        chex.assert_shape(tokens, (cache.k.shape[1], self.config.hidden_size))
        hidden, own = self._follow(tokens[:, None, None], cache)
        k, v = (
            jax.lax.dynamic_update_slice_in_dim(old, new[:, :, 0], place, axis=2)
            for old, new in zip((cache.k, cache.v), own, strict=True)
        )
        mask = jax.lax.dynamic_update_slice_in_dim(cache.mask, jnp.ones_like(cache.mask[:, :1]), place, axis=1)
        return hidden[:, 0, 0], PromptCache(k, v, mask, cache.end + 1)

    def _follow(self, segments: jax.Array, cache: PromptCache) -> tuple[jax.Array, KeyValues]:
        """`extend`, and all layers' keys and values of the segments `[layers, B, S, N, Hkv, D]`."""
        chex.assert_shape(segments, (cache.k.shape[1], None, None, self.config.hidden_size))
        length = segments.shape[2]
        positions = cache.end[:, None, None] + jnp.arange(length, dtype=jnp.int32)[None, None]  # [B, 1, N]
        angles = rope_angles(positions, self.config)
        own_mask = jnp.tril(jnp.ones((1, 1, length, length), bool))
        prompt = KeyValues(cache.k, cache.v)
        hidden, own = self._run_layers(segments.astype(self.dtype), angles, own_mask, prompt, cache.mask)
        return rms_norm(hidden, self.norm[...], self.config.rms_norm_eps), own

    def _full_pass(self, x: jax.Array, mask: jax.Array, positions: jax.Array | None) -> tuple[jax.Array, KeyValues]:
        """Hidden states `[B, T, d]` and all layers' keys and values `[layers, B, T, Hkv, D]`."""
        chex.assert_shape(x, (None, None, self.config.hidden_size))
        chex.assert_shape(mask, x.shape[:2])
        real = mask.astype(bool)
        places = token_positions(real) if positions is None else positions
        chex.assert_shape(places, x.shape[:2])
        length = x.shape[1]
        own_mask = real[:, None, :] & jnp.tril(jnp.ones((1, length, length), bool))  # [B, T, T]
        angles = rope_angles(places[:, None], self.config)
        hidden, layers = self._run_layers(x[:, None].astype(self.dtype), angles, own_mask[:, None], None, None)
        hidden = rms_norm(hidden[:, 0], self.norm[...], self.config.rms_norm_eps)
        return hidden, KeyValues(layers.keys[:, :, 0], layers.values[:, :, 0])

    def _run_layers(
        self,
        x: jax.Array,
        angles: tuple[jax.Array, jax.Array],
        own_mask: jax.Array,
        prompt: KeyValues | None,
        prompt_mask: jax.Array | None,
    ) -> tuple[jax.Array, KeyValues]:
        """Scan `decoder_layer` over the stacked weights (and prompt keys): `[B, S, N, d]` in and out."""

        def layer(x: jax.Array, stacked: tuple[LayerWeights, KeyValues | None]) -> tuple[jax.Array, KeyValues]:
            weights, keys_values = stacked
            return decoder_layer(x, weights, angles, own_mask, keys_values, prompt_mask, self.config)

        # Inside scan, common subexpressions of the forward and backward pass cannot be merged anyway.
        body = jax.checkpoint(layer, prevent_cse=False) if self.remat else layer
        return jax.lax.scan(body, x, (self.layers.weights(), prompt))


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], config: Qwen3Config, dtype: DTypeLike) -> jax.Array:
    """Draw a weight from a normal distribution of the config's standard deviation."""
    return config.initializer_range * jax.random.normal(rngs.params(), shape, dtype)
