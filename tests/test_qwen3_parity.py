"""Parity with `transformers`: against committed numbers, and live under the `parity` mark."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwen3_samples import write_folder

from fuyu_jax.qwen3 import Qwen3, Qwen3Config, load_qwen3, read_config

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "qwen3_parity.npz"))
META = json.loads(str(GOLDEN["meta"]))
CASES = META["cases"]

HIDDEN_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def golden_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float, bool], Qwen3]:
    """Models with the golden weights, each loaded once through a folder in Hugging Face layout."""

    @cache
    def build(theta: float, tied: bool) -> Qwen3:
        config = Qwen3Config(**META["sizes"], rope_theta=theta, tie_word_embeddings=tied)
        tensors = {k.removeprefix("weights/"): v for k, v in GOLDEN.items() if k.startswith("weights/")}
        if tied:
            del tensors["lm_head.weight"]
        folder = write_folder(tmp_path_factory.mktemp("model"), config, tensors)
        return load_qwen3(folder)

    return build


@cache
def traced(graph: nnx.GraphDef) -> Callable[..., Any]:
    """Hidden states, logits and input gradients in one jitted call."""

    def forward(embeds: jax.Array, state: nnx.State, mask: jax.Array, scale: jax.Array) -> tuple[jax.Array, Any]:
        model = nnx.merge(graph, state)
        hidden = model(inputs_embeds=embeds, attention_mask=mask)
        logits = model.logits(hidden)
        return jnp.sum(logits * scale * mask[..., None]), (hidden, logits)

    return jax.jit(jax.grad(forward, has_aux=True))


def relative(actual: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference over the largest wanted magnitude."""
    return float(np.max(np.abs(actual - wanted)) / np.max(np.abs(wanted)))


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden_model: Callable[[float, bool], Qwen3]) -> None:
    model = golden_model(CASES[name]["theta"], CASES[name]["tied"])
    mask, wanted = GOLDEN[f"{name}/mask"], {k: GOLDEN[f"{name}/{k}"] for k in ("hidden", "logits", "grad")}
    ids = GOLDEN["long_ids"] if name.startswith("long") else GOLDEN["ids"]
    scale = GOLDEN["scale"] if mask.shape == ids.shape == GOLDEN["ids"].shape else np.ones((*mask.shape, 1), np.float32)
    embeds = jnp.asarray(GOLDEN["dense"]) if name.startswith("dense") else model.embed(jnp.asarray(ids))

    graph, state = nnx.split(model)
    grad, (hidden, logits) = traced(graph)(embeds, state, jnp.asarray(mask), jnp.asarray(scale))
    np.testing.assert_allclose(np.asarray(hidden)[mask], wanted["hidden"][mask], rtol=0, atol=HIDDEN_TOLERANCE)
    np.testing.assert_allclose(np.asarray(logits)[mask], wanted["logits"][mask], rtol=0, atol=HIDDEN_TOLERANCE)
    assert relative(np.asarray(grad), wanted["grad"]) < GRADIENT_TOLERANCE
    assert np.all(np.asarray(grad)[~mask] == 0)


def test_token_and_embedding_inputs_are_the_same(golden_model: Callable[[float, bool], Qwen3]) -> None:
    model, ids = golden_model(1e6, True), jnp.asarray(GOLDEN["ids"])
    from_ids = model(input_ids=ids)
    np.testing.assert_array_equal(from_ids, model(inputs_embeds=model.embed(ids)))
    np.testing.assert_allclose(from_ids, GOLDEN["tied_1e+06_none/hidden"], rtol=0, atol=HIDDEN_TOLERANCE)


def test_the_cases_tell_rope_bases_and_heads_apart() -> None:
    hidden = [GOLDEN[f"tied_{theta}_none/hidden"] for theta in ("1e+04", "1e+06", "5e+06")]
    assert min(np.max(np.abs(a - b)) for a, b in zip(hidden, hidden[1:], strict=False)) > 100 * HIDDEN_TOLERANCE
    tied, untied = (GOLDEN[f"{head}_1e+06_none/logits"] for head in ("tied", "untied"))
    assert np.max(np.abs(tied - untied)) > 100 * HIDDEN_TOLERANCE


@pytest.mark.parity
@pytest.mark.parametrize("theta", [1e4, 1e6, 5e6])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_live(theta: float, tied: bool, side: str, tmp_path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(int(theta) + tied)
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=tied,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    reference = transformers.Qwen3ForCausalLM(config).eval()
    for name, parameter in reference.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.4, 1.8)
    reference.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert read_config(tmp_path).rope_theta == theta

    lengths = np.array([9, 4, 1])
    mask = np.arange(9)[None] < lengths[:, None]
    mask = mask[:, ::-1].copy() if side == "left" else mask
    ids = np.random.default_rng(0).integers(0, 64, mask.shape)
    attention = torch.tensor(mask.astype(np.int64))
    positions = (attention.cumsum(-1) - 1).clamp(min=0)
    embeds = reference.model.embed_tokens(torch.tensor(ids)).detach().requires_grad_()
    wanted = reference(inputs_embeds=embeds, attention_mask=attention, position_ids=positions).logits
    (wanted.sin() * attention[..., None]).sum().backward()

    model = load_qwen3(tmp_path)

    def loss(embeds: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = model.logits(model(inputs_embeds=embeds, attention_mask=jnp.asarray(mask)))
        return jnp.sum(jnp.sin(logits) * jnp.asarray(mask)[..., None]), logits

    grad, logits = jax.jit(jax.grad(loss, has_aux=True))(model.embed(jnp.asarray(ids, jnp.int32)))
    np.testing.assert_allclose(np.asarray(logits)[mask], wanted.detach().numpy()[mask], rtol=0, atol=HIDDEN_TOLERANCE)
    assert embeds.grad is not None
    assert relative(np.asarray(grad), embeds.grad.numpy()) < GRADIENT_TOLERANCE


@pytest.mark.parity
def test_a_config_written_here_is_read_by_transformers(tmp_path: Path) -> None:
    import transformers

    ours = Qwen3Config(**META["sizes"], rope_theta=5e6, tie_word_embeddings=True)
    (tmp_path / "config.json").write_text(json.dumps(ours.to_dict()), encoding="utf-8")
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert isinstance(theirs, transformers.Qwen3Config)
    assert theirs.rope_parameters["rope_theta"] == 5e6
    theirs.save_pretrained(tmp_path / "again")
    assert read_config(tmp_path / "again") == ours
