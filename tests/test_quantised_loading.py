"""Loading with quantisation: projections quantised, all else as in the file, everything frozen and counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from qwen3_samples import SMALL, file_tensors, write_folder

from fuyu_jax.qwen3 import PROJECTIONS, ModelError, load_qwen3, weight_bytes
from fuyu_jax.qwen3.lora import Frozen
from fuyu_jax.qwen3.quantisation import Int8, Nf4, quantise
from fuyu_jax.qwen3.weights import LAYER_KEYS

Q_PROJ_1 = "model.layers.1.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
TENSORS = file_tensors(SMALL)
KEYS = sorted(TENSORS)
SHARDS = (KEYS[:11], KEYS[11:20], KEYS[20:])


@pytest.mark.parametrize("quant", ["int8", "nf4"])
@pytest.mark.parametrize(
    ("dtype", "shards"), [(ml_dtypes.bfloat16, SHARDS), (np.float16, ()), (np.float32, ())], ids=["bf16", "f16", "f32"]
)
def test_quantised_loads(quant: str, dtype: type, shards: tuple[list[str], ...], tmp_path: Path) -> None:
    stored = {key: tensor.astype(dtype) for key, tensor in TENSORS.items()}
    model = load_qwen3(write_folder(tmp_path, SMALL, stored, shards), quant=quant)
    np.testing.assert_array_equal(model.embed_tokens[...], stored[EMBEDDING])
    for name, key in LAYER_KEYS.items():
        kept = getattr(model.layers, name).get_value()
        tensors = [stored[key.format(layer=layer)].T for layer in range(SMALL.num_hidden_layers)]
        if name in PROJECTIONS:
            assert isinstance(kept, {"int8": Int8, "nf4": Nf4}[quant])
            wanted = quantise(jnp.asarray(np.stack(tensors)), quant)
            jax.tree.map(np.testing.assert_array_equal, kept, wanted)
            assert [leaf.dtype.name for leaf in kept] == [{"int8": "int8", "nf4": "uint8"}[quant], "float32"]
        else:
            np.testing.assert_array_equal(kept, np.stack(tensors))
    # Nothing became wider on the way, and nothing of it is trained.
    plain = (model.embed_tokens, model.norm, model.layers.input_norm, model.layers.q_norm)
    assert {variable.dtype for variable in plain} == {jnp.dtype(dtype)}
    assert all(isinstance(variable, Frozen) for _, variable in nnx.to_flat_state(nnx.state(model)))


def test_what_is_not_quantised_can_be_kept_in_another_dtype(tmp_path: Path) -> None:
    untied = replace(SMALL, tie_word_embeddings=False)
    folder = write_folder(tmp_path, untied, file_tensors(untied))
    model = load_qwen3(folder, quant="nf4", param_dtype=jnp.bfloat16)
    assert {v.dtype for v in (model.embed_tokens, model.lm_head, model.layers.k_norm)} == {jnp.dtype(jnp.bfloat16)}
    assert model.layers.q_proj.get_value().scales.dtype == jnp.float32


@pytest.mark.parametrize("quant", ["none", "nf4"])
def test_progress_counts_every_byte_that_is_read(quant: str, tmp_path: Path) -> None:
    stored = {key: tensor.astype(ml_dtypes.bfloat16) for key, tensor in TENSORS.items()}
    folder = write_folder(tmp_path, SMALL, stored, SHARDS)
    read: list[int] = []
    load_qwen3(folder, quant=quant, advance=read.append)
    assert sorted(read) == sorted(tensor.nbytes for tensor in stored.values())
    assert weight_bytes(folder) == sum(read)


@pytest.mark.parametrize("quant", ["int8", "nf4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_not_quantised(quant: str, bad: float, tmp_path: Path) -> None:
    broken = TENSORS[Q_PROJ_1].copy()
    broken[5, 3] = bad
    folder = write_folder(tmp_path, SMALL, {**TENSORS, Q_PROJ_1: broken}, SHARDS)
    with pytest.raises(ModelError, match="infinities or NaN") as caught:
        load_qwen3(folder, quant=quant)
    assert Q_PROJ_1 in str(caught.value) and "-of-00003.safetensors" in str(caught.value)


def test_an_unknown_quantisation_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="quant is 'fp4'; use one of none, int8, nf4"):
        load_qwen3(tmp_path / "nowhere", quant="fp4")
