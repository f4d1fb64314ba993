"""Bytes foretold against the bytes of a model that is really there."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from qwen3_samples import SMALL, file_tensors, write_folder

from fuyu_jax.qwen3 import load_qwen3
from fuyu_jax.qwen3.lora import PROJECTIONS, adapt
from fuyu_jax.qwen3.memory import main, weights_needed
from fuyu_jax.runs.errors import run_main


def nbytes(state):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quant", ["none", "int8", "nf4"])
def test_weights_take_what_was_foretold(tmp_path, quant, tied):
    config = dataclasses.replace(SMALL, hidden_size=70, tie_word_embeddings=tied)  # 64 divides none of the widths
    write_folder(tmp_path, config, file_tensors(config))
    param_dtype = jnp.float32 if quant == "none" else None
    model = load_qwen3(tmp_path, param_dtype=param_dtype, quant=quant)
    adapt(model, 3, 6.0, PROJECTIONS, nnx.Rngs(0))
    _, adapters, base = nnx.split(model, nnx.LoRAParam, ...)
    need = weights_needed(config, quant, rank=3, dtype=jnp.float32)
    assert (need.base, need.adapters) == (nbytes(base), nbytes(adapters))
    assert need.optimiser == 3 * need.adapters


def test_the_command_names_the_public_models(capsys):
    assert run_main(main, []) == 0
    printed = capsys.readouterr().out
    assert "| Qwen/Qwen3-4B   |               7.5 |" in printed
    assert run_main(main, ["--rank", "0"]) == 2
    assert run_main(main, ["--model", "nowhere"]) == 2
