"""Prompt cache: `prefill` and `extend` give the numbers of one full pass over prompt and segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwen3_samples import SMALL, call, lively_model, ragged_mask, threefry

PROMPTS, WIDTH, SEGMENTS, TOKENS = 4, 7, 3, 5
LENGTHS = [7, 4, 1, 0]
MODEL = lively_model()
GRAPH, STATE = nnx.split(MODEL)
PROMPT = jax.random.normal(threefry(11), (PROMPTS, WIDTH, SMALL.hidden_size))
STEPS = jax.random.normal(threefry(12), (PROMPTS, SEGMENTS, TOKENS, SMALL.hidden_size))


def cached(state: nnx.State, prompt: jax.Array, steps: jax.Array, mask: jax.Array) -> jax.Array:
    model = nnx.merge(GRAPH, state)
    return model.extend(steps, model.prefill(prompt, mask))


def full_pass(state: nnx.State, prompt: jax.Array, steps: jax.Array, mask: jax.Array) -> jax.Array:
    model = nnx.merge(GRAPH, state)
    full_mask = jnp.concatenate((mask, jnp.ones((PROMPTS, TOKENS), bool)), axis=1)
    rows = [
        model(inputs_embeds=jnp.concatenate((prompt, steps[:, s]), axis=1), attention_mask=full_mask)[:, WIDTH:]
        for s in range(SEGMENTS)
    ]
    return jnp.stack(rows, axis=1)


def with_gradients(forward: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Gradients of a loss of the outputs with respect to parameters, prompt and segments; and the outputs."""

    def loss(*args: Any) -> tuple[jax.Array, jax.Array]:
        hidden = forward(*args)
        return jnp.sum(jnp.sin(hidden)), hidden

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))


cached_jit = jax.jit(cached)
cached_grads, full_pass_grads = with_gradients(cached), with_gradients(full_pass)


def test_cache_holds_each_layer_and_the_real_lengths() -> None:
    mask = ragged_mask(LENGTHS, WIDTH, "left")
    cache = call(MODEL, PROMPT, mask, method="prefill")
    chex.assert_shape((cache.k, cache.v), (SMALL.num_hidden_layers, PROMPTS, WIDTH, 2, SMALL.head_dim))
    np.testing.assert_array_equal(cache.end, LENGTHS)
    np.testing.assert_array_equal(cache.mask, mask)


@pytest.mark.parametrize("side", ["left", "right"])
def test_outputs_and_gradients_equal_a_full_pass(side: str) -> None:
    mask = ragged_mask(LENGTHS, WIDTH, side)
    grads, hidden = cached_grads(STATE, PROMPT, STEPS, mask)
    wanted_grads, wanted = full_pass_grads(STATE, PROMPT, STEPS, mask)
    np.testing.assert_allclose(hidden, wanted, rtol=0, atol=1e-5)
    chex.assert_trees_all_close(grads, wanted_grads, rtol=1e-3, atol=1e-3)
    assert np.all(np.asarray(grads[1])[~np.asarray(mask)] == 0)
    assert np.all(np.max(np.abs(grads[1]), axis=-1)[np.asarray(mask)] > 0)


def test_a_full_pass_tells_padding_sides_and_lengths_apart() -> None:
    mask = ragged_mask(LENGTHS, WIDTH, "left")
    longer = mask.at[1, 2].set(True)
    before, after = (cached_jit(STATE, PROMPT, STEPS, m) for m in (mask, longer))
    assert np.max(np.abs(before - after)[1]) > 1e-2
    np.testing.assert_array_equal(before[jnp.array([0, 2, 3])], after[jnp.array([0, 2, 3])])


def test_segments_do_not_see_each_other() -> None:
    mask = ragged_mask(LENGTHS, WIDTH, "right")
    changed = STEPS.at[:, 1].add(1.0)
    before, after = (np.asarray(cached_jit(STATE, PROMPT, steps, mask)) for steps in (STEPS, changed))
    np.testing.assert_array_equal(before[:, [0, 2]], after[:, [0, 2]])
    assert np.all(np.max(np.abs(before - after)[:, 1], axis=-1) > 1e-3)


def test_padding_in_the_prompt_is_never_read() -> None:
    mask = ragged_mask(LENGTHS, WIDTH, "right")
    garbage = jnp.where(mask[..., None], PROMPT, 1e4)
    np.testing.assert_array_equal(cached_jit(STATE, PROMPT, STEPS, mask), cached_jit(STATE, garbage, STEPS, mask))


def test_one_segment_at_a_time_gives_the_same_as_all_together() -> None:
    cache = call(MODEL, PROMPT, ragged_mask(LENGTHS, WIDTH, "right"), method="prefill")
    together = call(MODEL, STEPS, cache, method="extend")
    for s in range(SEGMENTS):
        alone = call(MODEL, STEPS[:, s : s + 1], cache, method="extend")
        np.testing.assert_allclose(alone[:, 0], together[:, s], rtol=0, atol=1e-5)


def test_bfloat16_cache_stays_near_a_bfloat16_full_pass() -> None:
    model = lively_model(dtype=jnp.bfloat16)
    mask = ragged_mask(LENGTHS, WIDTH, "left")
    cache = call(model, PROMPT, mask, method="prefill")
    assert cache.k.dtype == cache.v.dtype == jnp.bfloat16
    hidden = call(model, STEPS, cache, method="extend")
    assert hidden.dtype == jnp.bfloat16
    exact = cached_jit(STATE, PROMPT, STEPS, mask)
    assert np.sqrt(np.mean((hidden.astype(jnp.float32) - exact) ** 2)) < 0.05 * float(jnp.std(exact))


def test_one_trace_whatever_the_lengths() -> None:
    forward = jax.jit(chex.assert_max_traces(cached, n=1))
    for side in ("left", "right"):
        forward(STATE, PROMPT, STEPS, ragged_mask(LENGTHS[::-1], WIDTH, side))


def test_segments_of_another_batch_are_refused() -> None:
    cache = call(MODEL, PROMPT, ragged_mask(LENGTHS, WIDTH, "right"), method="prefill")
    with pytest.raises(AssertionError):
        MODEL.extend(STEPS[:2], cache)
