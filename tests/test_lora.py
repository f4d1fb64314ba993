"""LoRA on a frozen Qwen3: what moves and what must not, against plain arithmetic and an unquantised reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from qwen3_samples import SMALL, call, file_tensors, lively_model, threefry, write_folder

from fuyu_jax.qwen3 import Qwen3, adapt, load_qwen3, merged_kernel
from fuyu_jax.qwen3.layers import LayerWeights, decoder_layer, project, rms_norm, rope_angles
from fuyu_jax.qwen3.lora import PROJECTIONS, Adapted, Frozen, LoraSpec, freeze
from fuyu_jax.qwen3.quantisation import dequantise, quantise
from fuyu_jax.runs.checkpoints import load_checkpoint, save_checkpoint

TENSORS = file_tensors(SMALL)
BATCH, LENGTH, RANK, ALPHA = 2, 5, 3, 12.0
EMBEDS = jax.random.normal(threefry(5), (BATCH, LENGTH, SMALL.hidden_size))
# Rank 4, alpha 16, of which only the first column and row are not zero.
A = jnp.zeros((2, 4)).at[:, 0].set(1.0)
B = jnp.zeros((4, 2)).at[0].set(jnp.array([1.0, 2.0]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), SMALL, TENSORS)


def adapted_model(folder: Path, quant: str, targets: tuple[str, ...] = PROJECTIONS, **options: Any) -> Qwen3:
    """A loaded model whose adapters, `b` included, are away from zero."""
    model = load_qwen3(folder, quant=quant, **options)
    adapt(model, RANK, ALPHA, targets, nnx.Rngs(threefry(1)))
    for number, name in enumerate(targets):
        b = model.layers.adapters[name].b
        b.set_value(0.2 * jax.random.normal(threefry(number), b.shape))
    return model


def split(model: Qwen3) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
    return nnx.split(model, nnx.Param, ...)


def loss_of(graph: nnx.GraphDef) -> Any:
    def loss(trained: nnx.State, frozen: nnx.State) -> jax.Array:
        hidden = nnx.merge(graph, trained, frozen)(inputs_embeds=EMBEDS)
        return jnp.sum(jnp.sin(hidden.astype(jnp.float32)))

    return loss


def test_the_scale_is_alpha_over_rank_by_hand() -> None:
    spec = LoraSpec(4, 16.0, ("q_proj",))
    kernel = Adapted(jnp.zeros((2, 2)), A, B, spec.scale)
    np.testing.assert_array_equal(project(jnp.array([[1.0, 2.0]]), kernel), [[12.0, 24.0]])


def test_the_first_step_moves_b_and_not_a() -> None:
    x, fresh = jnp.array([[1.0, 2.0]]), Adapted(jnp.eye(2), jnp.ones((2, 1)), jnp.zeros((1, 2)), 4.0)
    value, grad = jax.value_and_grad(lambda kernel: jnp.sum(project(x, kernel)))(fresh)
    assert value == 3.0
    np.testing.assert_array_equal(grad.a, np.zeros((2, 1)))
    np.testing.assert_array_equal(grad.b, [[12.0, 12.0]])
    np.testing.assert_array_equal(grad.base, np.zeros((2, 2)))


@pytest.mark.parametrize("quant", ["none", "nf4"])
def test_fresh_adapters_change_nothing_and_are_drawn_as_peft_draws_them(quant: str, folder: Path) -> None:
    model = load_qwen3(folder, quant=quant)
    before = call(model, inputs_embeds=EMBEDS)
    adapt(model, 64, 16, PROJECTIONS, nnx.Rngs(threefry(1)))
    np.testing.assert_array_equal(before, call(model, inputs_embeds=EMBEDS))
    for name, width_in in {"q_proj": 24, "o_proj": 64, "down_proj": 40}.items():
        adapter = model.layers.adapters[name]
        a = np.asarray(adapter.a[...])
        assert a.shape == (3, width_in, 64) and a.dtype == np.float32
        assert 0.9 * width_in**-0.5 < np.abs(a).max() <= width_in**-0.5
        assert a.std() == pytest.approx((3 * width_in) ** -0.5, rel=0.05)  # uniform
        assert not np.array_equal(a[0], a[1])
        assert np.all(np.asarray(adapter.b[...]) == 0) and adapter.b.dtype == jnp.float32


@pytest.mark.parametrize("quant", ["none", "nf4"])
def test_only_adapters_are_trained_and_the_base_never_moves(quant: str, folder: Path) -> None:
    model = load_qwen3(folder, quant=quant)
    adapt(model, RANK, ALPHA, ("q_proj", "down_proj"), nnx.Rngs(threefry(1)))
    graph, trained, frozen = split(model)
    assert {str(path[-3:]) for path, _ in nnx.to_flat_state(trained)} == {
        f"('adapters', '{name}', '{side}')" for name in ("q_proj", "down_proj") for side in "ab"
    }
    bits = jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), frozen)
    optimiser = optax.adamw(0.1, weight_decay=0.1)
    moments, now = optimiser.init(trained), trained
    step = jax.jit(jax.grad(loss_of(graph)))
    for _ in range(3):
        updates, moments = optimiser.update(step(now, frozen), moments, now)
        now = optax.apply_updates(now, updates)
    for before, after in zip(jax.tree.leaves(trained), jax.tree.leaves(now), strict=True):
        assert np.all(np.max(np.abs(before - after), axis=(1, 2)) > 0)  # in every layer
    assert bits == jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), frozen)
    after = nnx.merge(graph, now, frozen)
    assert bits == jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), split(after)[2])
    assert np.max(np.abs(call(model, inputs_embeds=EMBEDS) - call(after, inputs_embeds=EMBEDS))) > 1e-2


def dense_layers(model: Qwen3) -> dict[str, jax.Array]:
    """Every projection `[layers, in, out]`, dequantised, without its adapter."""
    widths = {name: TENSORS[key].shape[1] for name, key in KEYS.items()}
    return {name: dequantise(getattr(model.layers, name).get_value(), widths[name]) for name in PROJECTIONS}


KEYS = {
    name: f"model.layers.0.{'mlp' if name in ('gate_proj', 'up_proj', 'down_proj') else 'self_attn'}.{name}.weight"
    for name in PROJECTIONS
}


@pytest.mark.parametrize(
    ("quant", "targets"),
    [("none", PROJECTIONS), ("int8", PROJECTIONS), ("nf4", PROJECTIONS), ("nf4", ("q_proj", "v_proj"))],
    ids=["none", "int8", "nf4", "nf4_two"],
)
def test_values_and_gradients_equal_an_unquantised_model_with_the_sum_in_place(
    quant: str, targets: tuple[str, ...], folder: Path
) -> None:
    model = adapted_model(folder, quant, targets)
    plain = load_qwen3(folder)
    bases = dense_layers(model)
    graph, state = nnx.split(plain)

    def loss(adapters: dict[str, tuple[jax.Array, jax.Array]]) -> jax.Array:
        merged = nnx.merge(graph, state)
        for name, base in bases.items():
            update = ALPHA / RANK * jnp.matmul(*adapters[name]) if name in adapters else 0.0
            setattr(merged.layers, name, nnx.Param(base + update))
        return jnp.sum(jnp.sin(merged(inputs_embeds=EMBEDS)))

    adapters = {name: (model.layers.adapters[name].a[...], model.layers.adapters[name].b[...]) for name in targets}
    wanted, wanted_grads = jax.jit(jax.value_and_grad(loss))(adapters)
    lora_graph, trained, frozen = split(model)
    value, grads = jax.jit(jax.value_and_grad(loss_of(lora_graph)))(trained, frozen)
    np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-4)
    for name, pair in wanted_grads.items():
        for side, wanted_grad in zip("ab", pair, strict=True):
            grad = grads["layers"]["adapters"][name][side].get_value()
            np.testing.assert_allclose(grad, wanted_grad, rtol=1e-3, atol=1e-3 * np.abs(wanted_grad).max())


@pytest.mark.parametrize("remat", [True, False])
def test_scan_equals_a_loop_over_layers(remat: bool, folder: Path) -> None:
    model = adapted_model(folder, "nf4", ("k_proj", "up_proj"), remat=remat)
    angles = rope_angles(jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32), (BATCH, 1, LENGTH)), SMALL)
    causal = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))
    graph, trained, frozen = split(model)

    def loop(trained: nnx.State, frozen: nnx.State) -> jax.Array:
        merged = nnx.merge(graph, trained, frozen)
        stacked: LayerWeights = merged.layers.weights()
        x = EMBEDS[:, None]
        for index in range(SMALL.num_hidden_layers):
            weights = jax.tree.map(lambda leaf, index=index: leaf[index], stacked)
            x, _ = decoder_layer(x, weights, angles, causal, None, None, SMALL)
        return jnp.sum(jnp.sin(rms_norm(x[:, 0], merged.norm[...], SMALL.rms_norm_eps)))

    actual = jax.jit(jax.value_and_grad(loss_of(graph)))(trained, frozen)
    wanted = jax.jit(jax.value_and_grad(loop))(trained, frozen)
    chex.assert_trees_all_close(actual, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("quant", ["none", "int8", "nf4"])
def test_merged_kernels_give_the_same_model(quant: str, folder: Path) -> None:
    model = adapted_model(folder, quant, ("q_proj", "o_proj"))
    plain = load_qwen3(folder)
    for name in PROJECTIONS:
        merged = jnp.stack([merged_kernel(model, name, layer) for layer in range(SMALL.num_hidden_layers)])
        assert merged.dtype == jnp.float32
        getattr(plain.layers, name).set_value(merged)
    twice = [merged_kernel(model, "q_proj", 1) for _ in range(2)]
    np.testing.assert_array_equal(*twice)  # merging changes nothing in the model
    wanted = call(model, inputs_embeds=EMBEDS)
    np.testing.assert_allclose(call(plain, inputs_embeds=EMBEDS), wanted, rtol=0, atol=1e-4)


def test_a_small_change_survives_merging_in_sixteen_bits_and_not_in_four(folder: Path) -> None:
    model = load_qwen3(folder, quant="nf4")
    adapt(model, 4, 16, ("q_proj",), nnx.Rngs(threefry(1)))
    level = 0.33791524171829224
    base = jnp.zeros((3, 24, 64)).at[:, 0, 0].set(1.0).at[:, 1, 0].set(level)
    model.layers.q_proj.set_value(quantise(base, "nf4"))
    adapter = model.layers.adapters["q_proj"]
    adapter.a.set_value(jnp.zeros((3, 24, 4)).at[:, 1, 0].set(0.05))
    adapter.b.set_value(jnp.zeros((3, 4, 64)).at[:, 0, 0].set(0.05))  # scale 4: 0.01 in all
    merged = merged_kernel(model, "q_proj", 2)
    assert merged[1, 0] == pytest.approx(level + 0.01, abs=1e-6)
    assert float(merged.astype(jnp.bfloat16)[1, 0]) == pytest.approx(level + 0.01, abs=2e-3)
    assert dequantise(quantise(merged, "nf4"), 24)[1, 0] == pytest.approx(level, abs=1e-6)


def test_adapters_gradients_and_moments_are_float32_under_bfloat16(folder: Path) -> None:
    model = adapted_model(folder, "nf4", dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    assert call(model, inputs_embeds=EMBEDS).dtype == jnp.bfloat16
    graph, trained, frozen = split(model)
    optimiser = optax.adam(1e-3)
    grads = jax.jit(jax.grad(loss_of(graph)))(trained, frozen)
    _, moments = optimiser.update(grads, optimiser.init(trained))
    floats = [leaf for leaf in jax.tree.leaves((trained, grads, moments)) if leaf.ndim]
    assert {leaf.dtype for leaf in floats} == {jnp.dtype(jnp.float32)}
    # A hundred additions of 0.001 to 1: bfloat16 stays at 1.
    total = jax.tree.map(jnp.ones_like, trained)
    for _ in range(100):
        total = optax.apply_updates(total, jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.001), trained))
    for leaf in jax.tree.leaves(total):
        np.testing.assert_allclose(leaf, 1.1, rtol=1e-5)


def test_adapter_gradients_are_float32_sums_under_bfloat16() -> None:
    # Rows of 256 and 0.5 in turn: a bfloat16 sum has no room for the halves.
    x = jnp.tile(jnp.array([[256.0], [0.5]], jnp.bfloat16), (256, 1))
    kernel = Adapted(jnp.ones((1, 1), jnp.bfloat16), jnp.ones((1, 1)), jnp.ones((1, 1)), 1.0)
    grad = jax.grad(lambda kernel: jnp.sum(project(x, kernel).astype(jnp.float32)))(kernel)
    assert grad.a.dtype == grad.b.dtype == jnp.float32
    np.testing.assert_array_equal(grad.a, [[256 * 256.5]])
    np.testing.assert_array_equal(grad.b, [[256 * 256.5]])


def test_freezing_takes_every_weight(folder: Path) -> None:
    model = lively_model()
    before = call(model, inputs_embeds=EMBEDS)
    freeze(model)
    _, trained, frozen = split(model)
    assert not jax.tree.leaves(trained)
    assert len(nnx.to_flat_state(frozen)) == len(LayerWeights._fields) + 2
    assert all(isinstance(variable, Frozen) for _, variable in nnx.to_flat_state(frozen))
    np.testing.assert_array_equal(before, call(model, inputs_embeds=EMBEDS))


def test_no_gradient_of_a_frozen_weight_is_computed() -> None:
    def flops(model: Qwen3) -> float:
        graph, trained, frozen = split(model)

        def loss(embeds: jax.Array, trained: nnx.State) -> jax.Array:
            return jnp.sum(jnp.sin(nnx.merge(graph, trained, frozen)(inputs_embeds=embeds)))

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(EMBEDS, trained).compile()
        return compiled.cost_analysis()["flops"]

    plain, fixed = lively_model(), lively_model()
    freeze(fixed)
    kernels = sum(getattr(plain.layers, name)[0].size for name in PROJECTIONS)  # of the scan's body, counted once
    assert flops(plain) - flops(fixed) >= 2 * kernels * BATCH * LENGTH


def test_checkpoints_bring_adapters_back_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    model = adapted_model(folder, "nf4")
    wanted = call(model, inputs_embeds=EMBEDS)
    save_checkpoint(tmp_path / "adapters", split(model)[1], {})
    again = load_qwen3(folder, quant="nf4")
    adapt(again, RANK, ALPHA, PROJECTIONS, nnx.Rngs(threefry(99)))
    graph, fresh, frozen = split(again)
    assert np.max(np.abs(call(again, inputs_embeds=EMBEDS) - wanted)) > 1e-2
    restored = load_checkpoint(tmp_path / "adapters", fresh).tree
    np.testing.assert_array_equal(call(nnx.merge(graph, restored, frozen), inputs_embeds=EMBEDS), wanted)


@pytest.mark.parametrize(
    ("rank", "alpha", "targets", "word"),
    [
        (4, 8, (), "nothing would be trained"),
        (4, 8, ("q_proj", "qproj"), "'qproj' matches no projection"),
        (4, 8, ("lm_head",), "'lm_head' matches no projection"),
        (4, 8, ("q_proj", "q_proj"), "twice"),
        (0, 8, ("q_proj",), "rank is 0"),
        (4, 0, ("q_proj",), "alpha is 0"),
        (4, float("nan"), ("q_proj",), "alpha is nan"),
    ],
)
def test_adapters_that_would_train_nothing_are_refused(rank: int, alpha: float, targets: Any, word: str) -> None:
    model = lively_model()
    with pytest.raises(ValueError, match=word) as caught:
        adapt(model, rank, alpha, targets, nnx.Rngs(threefry(1)))
    assert str(caught.value).endswith(".")
    assert model.lora is None and len(jax.tree.leaves(nnx.state(model, nnx.Param))) == len(LayerWeights._fields) + 2


def test_the_spec_is_kept_and_a_second_adapter_refused() -> None:
    model = lively_model()
    adapt(model, 2, 8, ["v_proj", "q_proj"], nnx.Rngs(threefry(1)))
    assert model.lora == LoraSpec(2, 8, ("q_proj", "v_proj")) and model.lora.scale == 4
    with pytest.raises(ValueError, match="already"):
        adapt(model, 2, 8, ("q_proj",), nnx.Rngs(threefry(1)))
