"""The model's own promises: masks, positions, precision, heads, scan, initial weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwen3_samples import SMALL, call, lively_model, ragged_mask, threefry

from fuyu_jax.qwen3 import Qwen3
from fuyu_jax.qwen3.layers import KeyValues, LayerWeights, attend, decoder_layer, project, rms_norm, rope_angles
from fuyu_jax.qwen3.model import token_positions

MODEL = lively_model()
BATCH, LENGTH = 3, 6
EMBEDS = jax.random.normal(threefry(5), (BATCH, LENGTH, SMALL.hidden_size))


@pytest.mark.parametrize("both", [True, False])
def test_exactly_one_input_is_taken(both: bool) -> None:
    ids = jnp.zeros((1, 2), jnp.int32)
    with pytest.raises(ValueError, match="exactly one"):
        MODEL(ids, MODEL.embed(ids)) if both else MODEL()


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_for_real_tokens(side: str) -> None:
    mask = ragged_mask([6, 3, 1], LENGTH, side)
    hidden = call(MODEL, inputs_embeds=EMBEDS, attention_mask=mask)
    for row in range(BATCH):
        real = np.flatnonzero(mask[row])
        alone = call(MODEL, inputs_embeds=EMBEDS[row : row + 1, real])
        np.testing.assert_allclose(hidden[row, real], alone[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_without_any_token_stay_finite_and_padding_gets_no_gradient(side: str) -> None:
    mask = ragged_mask([4, 2, 0], LENGTH, side)

    def loss(embeds: jax.Array) -> jax.Array:
        hidden = MODEL(inputs_embeds=embeds, attention_mask=mask)
        return jnp.sum(jnp.sin(hidden) * mask[..., None])

    assert np.all(np.isfinite(call(MODEL, inputs_embeds=EMBEDS, attention_mask=mask)))
    grad = np.asarray(jax.jit(jax.grad(loss))(EMBEDS))
    assert np.all(np.isfinite(grad))
    assert np.all(grad[~np.asarray(mask)] == 0)
    assert np.all(np.abs(grad[np.asarray(mask)]).max(axis=-1) > 0)


def test_positions_count_real_tokens() -> None:
    mask = jnp.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]], bool)
    wanted = [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 0, 1, 1, 2], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(token_positions(mask), wanted)


def test_only_distances_between_positions_matter_and_they_do() -> None:
    plain = call(MODEL, inputs_embeds=EMBEDS)
    places = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32)[None], (BATCH, LENGTH))
    np.testing.assert_array_equal(plain, call(MODEL, inputs_embeds=EMBEDS, positions=places))
    np.testing.assert_allclose(plain, call(MODEL, inputs_embeds=EMBEDS, positions=places + 900), rtol=0, atol=1e-3)
    assert np.max(np.abs(plain - call(MODEL, inputs_embeds=EMBEDS, positions=2 * places))) > 0.1


def test_no_token_sees_a_later_one() -> None:
    changed = EMBEDS.at[:, 3].add(1.0)
    before, after = (call(MODEL, inputs_embeds=embeds) for embeds in (EMBEDS, changed))
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert np.all(np.max(np.abs(before - after)[:, 3:], axis=-1) > 1e-3)


def test_consecutive_query_heads_share_a_key_value_head() -> None:
    # Query head h looks for token h % 2; key/value head g holds 10 * token + g + 1.
    queries = 100 * jnp.eye(2)[jnp.arange(4) % 2][None, None, None]  # [1, 1, 1, 4, 2]
    queries = jnp.broadcast_to(queries, (1, 1, 2, 4, 2))
    keys = jnp.broadcast_to(jnp.eye(2)[None, None, :, None], (1, 1, 2, 2, 2))
    values = 10.0 * jnp.arange(2)[:, None] + jnp.arange(1.0, 3.0)[None]  # [tokens, heads]
    own = KeyValues(keys, jnp.broadcast_to(values[None, None, ..., None], (1, 1, 2, 2, 2)))
    mixed = attend(queries, own, jnp.ones((1, 1, 2, 2), bool), None, None)
    np.testing.assert_allclose(mixed[0, 0, 0, :, 0], [1.0, 11.0, 2.0, 12.0], rtol=1e-6)


def test_attention_by_hand() -> None:
    # One head of width 1, scores 0 and log 3 on the prompt, log 4 on itself: weights 1/8, 3/8, 4/8.
    prompt = KeyValues(
        jnp.log(jnp.array([1.0, 3.0, 50.0])).reshape(1, 3, 1, 1), jnp.arange(1.0, 4.0).reshape(1, 3, 1, 1)
    )
    own = KeyValues(jnp.log(jnp.full((1, 1, 1, 1, 1), 4.0)), jnp.full((1, 1, 1, 1, 1), 10.0))
    mask = jnp.array([[True, True, False]])
    mixed = attend(jnp.ones((1, 1, 1, 1, 1)), own, jnp.ones((1, 1, 1, 1), bool), prompt, mask)
    np.testing.assert_allclose(mixed.ravel(), [1 / 8 + 2 * 3 / 8 + 10 * 4 / 8], rtol=1e-6)


def test_rotary_phases_are_float32_where_bfloat16_would_merge_positions() -> None:
    cos, sin = rope_angles(jnp.array([256, 257, 258], jnp.int32), SMALL)
    np.testing.assert_allclose(cos[:, 0], [-0.039791, 0.819306, 0.925136], atol=1e-5)
    assert cos.dtype == sin.dtype == jnp.float32


def test_bfloat16_stays_near_float32_at_far_positions() -> None:
    low = lively_model(dtype=jnp.bfloat16)
    places = jnp.broadcast_to(1001 + 3 * jnp.arange(LENGTH, dtype=jnp.int32)[None], (BATCH, LENGTH))
    exact, rough = (call(model, inputs_embeds=EMBEDS, positions=places) for model in (MODEL, low))
    assert rough.dtype == jnp.bfloat16
    difference = np.abs(np.asarray(exact) - np.asarray(rough, np.float32))
    assert np.sqrt(np.mean(difference**2)) < 0.05 * float(jnp.std(exact))


def test_rms_norm_by_hand_and_its_dtypes() -> None:
    x = jnp.array([3.0, 4.0])
    np.testing.assert_allclose(rms_norm(x, jnp.ones(2), 1e-6), [0.848528, 1.131371], rtol=1e-5)
    assert rms_norm(x.astype(jnp.bfloat16), jnp.ones(2), 1e-6).dtype == jnp.bfloat16
    # As in the reference: rounded to bfloat16 before the scale, and once more after it.
    scale = jnp.array([1.7, 0.3])
    normed = (np.array([3, 4]) / np.sqrt(12.5)).astype(jnp.bfloat16)
    wanted = normed * np.asarray(scale, jnp.bfloat16)
    np.testing.assert_array_equal(rms_norm(x.astype(jnp.bfloat16), scale, 1e-6), wanted)
    tiny = jnp.full(4, 1e-3, jnp.bfloat16)
    np.testing.assert_allclose(rms_norm(tiny, jnp.ones(4), 1e-6), np.full(4, 0.5**0.5), rtol=1e-2)


def test_projection_gradients_equal_the_automatic_ones() -> None:
    x, kernel = (jax.random.normal(threefry(n), shape) for n, shape in enumerate([(2, 3, 4), (4, 5)]))
    wanted = jax.grad(lambda x, k: jnp.sum(jnp.sin(x @ k)), argnums=(0, 1))(x, kernel)
    chex.assert_trees_all_close(
        jax.grad(lambda x, k: jnp.sum(jnp.sin(project(x, k))), argnums=(0, 1))(x, kernel), wanted, rtol=1e-5
    )


def test_kernel_gradients_are_float32_sums_under_bfloat16() -> None:
    # Rows of 256 and 0.5 in turn: a bfloat16 sum has no room for the halves.
    x = jnp.tile(jnp.array([[256.0], [0.5]], jnp.bfloat16), (256, 1))
    grad = jax.grad(lambda kernel: jnp.sum(project(x, kernel).astype(jnp.float32)))(jnp.ones((1, 1)))
    assert grad.dtype == jnp.float32
    np.testing.assert_array_equal(grad, [[256 * 256.5]])


@pytest.mark.parametrize("remat", [True, False])
def test_scan_equals_a_loop_over_layers(remat: bool) -> None:
    model = lively_model(remat=remat)
    angles = rope_angles(jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32), (BATCH, 1, LENGTH)), SMALL)
    causal = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))

    def loop(embeds: jax.Array, stacked: LayerWeights) -> jax.Array:
        x = embeds[:, None]
        for index in range(SMALL.num_hidden_layers):
            weights = jax.tree.map(lambda leaf, index=index: leaf[index], stacked)
            x, _ = decoder_layer(x, weights, angles, causal, None, None, SMALL)
        return jnp.sum(jnp.sin(rms_norm(x[:, 0], model.norm[...], SMALL.rms_norm_eps)))

    def scanned(embeds: jax.Array, state: nnx.State) -> jax.Array:
        return jnp.sum(jnp.sin(nnx.merge(graph, state)(inputs_embeds=embeds)))

    graph, state = nnx.split(model)
    value, (grad, grad_state) = jax.jit(jax.value_and_grad(scanned, argnums=(0, 1)))(EMBEDS, state)
    wanted, (wanted_grad, wanted_layers) = jax.jit(jax.value_and_grad(loop, argnums=(0, 1)))(
        EMBEDS, model.layers.weights()
    )
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(grad, wanted_grad, rtol=1e-3, atol=1e-4)
    for name in LayerWeights._fields:
        actual = grad_state["layers"][name].get_value()
        np.testing.assert_allclose(actual, getattr(wanted_layers, name), rtol=1e-3, atol=1e-3)


def test_one_trace_of_the_model_and_no_more_layer_traces_for_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = Counter[int]()
    layer_traces = Counter[int]()

    def counted_layer(*args: Any) -> Any:
        layer_traces[depth] += 1
        return decoder_layer(*args)

    def forward(state: nnx.State, embeds: jax.Array, mask: jax.Array) -> jax.Array:
        traces[depth] += 1
        return nnx.merge(graph, state)(inputs_embeds=embeds, attention_mask=mask)

    monkeypatch.setattr("fuyu_jax.qwen3.model.decoder_layer", counted_layer)
    for depth in (2, 5):
        graph, state = nnx.split(lively_model(replace(SMALL, num_hidden_layers=depth)))
        compiled = jax.jit(forward)
        for side in ("left", "right"):
            compiled(state, EMBEDS, ragged_mask([6, 3, 1], LENGTH, side))
    assert traces == {2: 1, 5: 1}
    assert layer_traces[2] == layer_traces[5] == 1


def test_bfloat16_compute_keeps_float32_parameters_and_gradients() -> None:
    graph, state = nnx.split(lively_model(dtype=jnp.bfloat16))
    grads = jax.eval_shape(
        jax.grad(lambda s: jnp.sum(nnx.merge(graph, s)(inputs_embeds=EMBEDS).astype(jnp.float32))), state
    )
    assert {leaf.dtype for leaf in jax.tree.leaves((state, grads))} == {jnp.dtype(jnp.float32)}


def test_initial_weights() -> None:
    config = replace(SMALL, vocab_size=400, hidden_size=64, tie_word_embeddings=False)
    model = Qwen3(config, rngs=nnx.Rngs(threefry(3)))
    kernels = [model.embed_tokens, model.lm_head, model.layers.q_proj, model.layers.down_proj]
    for kernel in kernels:
        assert float(jnp.std(kernel[...])) == pytest.approx(0.02, rel=0.05)
    for norm in (model.norm, model.layers.input_norm, model.layers.q_norm):
        np.testing.assert_array_equal(norm[...], 1.0)
    assert model.layers.q_proj.shape == (3, 64, 4 * 16)
    same, other = (Qwen3(config, rngs=nnx.Rngs(threefry(seed))) for seed in (3, 4))
    chex.assert_trees_all_equal(nnx.state(model), nnx.state(same))
    assert not np.array_equal(model.embed_tokens[...], other.embed_tokens[...])
    assert not np.array_equal(model.layers.gate_proj[...], model.layers.up_proj[...])


def test_head_is_the_embedding_only_when_tied() -> None:
    hidden = jax.random.normal(threefry(9), (2, SMALL.hidden_size))
    np.testing.assert_allclose(MODEL.logits(hidden), hidden @ MODEL.embed_tokens[...].T, rtol=1e-6)
    untied = lively_model(replace(SMALL, tie_word_embeddings=False))
    np.testing.assert_allclose(untied.logits(hidden), hidden @ untied.lm_head[...], rtol=1e-6)
    assert not hasattr(MODEL, "lm_head")
