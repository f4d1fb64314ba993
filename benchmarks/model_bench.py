"""`bench.py model`: forward and backward pass at the embedded model's sizes, against `transformers` on PyTorch."""

from __future__ import annotations

import dataclasses
import importlib.util
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.timing import Contender, Report, compiled, measure
from fuyu_jax.qwen3 import Qwen3, Qwen3Config, load_qwen3, read_config, resolve_model
from fuyu_jax.qwen3.locate import TINY
from fuyu_jax.runs.manifest import machine
from vm.types import THREEFRY

BENCH = "model"
BATCHES = (1, 64)
RATIO_BATCH = 64
TOKENS = 78  # a prompt of 64 tokens and the 14 of a state
DEEP_LAYERS = 36  # as Qwen3-4B and 8B have
OURS, TORCH, DEEP = "ours", "transformers on PyTorch", f"ours, {DEEP_LAYERS} layers"
TOLERANCE = 1e-4


def run(batches: Sequence[int] | None, repeats: int) -> Report:
    """Measure loss and gradient on that many sequences, and the compile time of many layers."""
    batches = batches or BATCHES
    config = read_config(resolve_model(TINY))
    report = Report(
        notes=[
            f"Measured are the next-token loss on sequences of {TOKENS} tokens and its gradient with respect to all "
            "weights, in float32. Ours recomputes each layer in the backward pass, as it does in training."
        ]
    )
    theirs = _torch_model(config, report)
    ours = draw(config) if theirs is None else _same_weights(theirs)
    for batch in batches:
        ids = _token_ids(config, batch)
        contenders = [_ours(OURS, ours, ids)]
        if theirs is not None:
            contenders.append(_theirs(theirs, ids))
            _check_agreement(contenders)
        report.rows += measure(BENCH, contenders, repeats)
    # Our time over PyTorch's, which is PyTorch's rate over ours.
    report.add_ratio("model_vs_torch", RATIO_BATCH, "tokens", (TORCH, OURS))
    deep = draw(dataclasses.replace(config, num_hidden_layers=DEEP_LAYERS))
    report.rows += measure(BENCH, [_ours(DEEP, deep, _token_ids(config, 1))], repeats)
    return report


def draw(config: Qwen3Config) -> Qwen3:
    """A model with random weights."""
    return Qwen3(config, rngs=nnx.Rngs(jax.random.key(0, impl=THREEFRY)))


def _token_ids(config: Qwen3Config, batch: int) -> np.ndarray:
    """Random token ids: int32 `[batch, TOKENS]`."""
    return np.random.default_rng(0).integers(0, config.vocab_size, (batch, TOKENS), np.int32)


def _ours(case: str, model: Qwen3, ids: np.ndarray) -> Contender:
    graph, state = nnx.split(model)

    def loss(state: nnx.State, ids: jax.Array) -> jax.Array:
        model = nnx.merge(graph, state)
        logits = model.logits(model(input_ids=ids))  # [batch, TOKENS, vocabulary]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], ids[:, 1:]))

    def loss_and_gradient(state: nnx.State, ids: jax.Array) -> tuple[jax.Array, jax.Array, nnx.State]:
        value, gradient = jax.value_and_grad(loss)(state, ids)
        return value, optax.tree.norm(gradient), gradient

    return compiled(case, len(ids), {"tokens": ids.size}, loss_and_gradient, state, ids)


def _theirs(model: Any, ids: np.ndarray) -> Contender:
    import torch

    tokens = torch.tensor(ids, dtype=torch.int64)

    def run() -> tuple[Any, Any]:
        model.zero_grad(set_to_none=True)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return loss.detach(), torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])

    return Contender(TORCH, len(ids), run, {"tokens": ids.size})


def _torch_model(config: Qwen3Config, report: Report) -> Any:
    """The model in `transformers` with random weights, or None where there is nothing to compare with."""
    if importlib.util.find_spec("torch") is None:
        report.notes.append("PyTorch is left out: it is not installed; `make parity` installs it.")
        return None
    if jax.default_backend() != "cpu":
        report.notes.append("PyTorch is left out: the comparison is made on a CPU.")
        return None
    import torch
    import transformers

    torch.set_num_threads(machine()["cores"])
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    report.notes.append(
        f"PyTorch {torch.__version__} with transformers {transformers.__version__} uses {torch.get_num_threads()} "
        f"threads, as many as XLA, on the same weights and tokens: losses and norms of the gradient agree within "
        f"{TOLERANCE:g}."
    )
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**config.to_dict()))


def _same_weights(theirs: Any) -> Qwen3:
    """Our model with the weights of the one in `transformers`."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return load_qwen3(folder)


def _check_agreement(contenders: Sequence[Contender]) -> None:
    """What is compared must compute the same loss and, as its norm tells, the same gradient."""
    (loss, norm, _), (torch_loss, torch_norm) = (contender.run() for contender in contenders)
    np.testing.assert_allclose([loss, norm], [torch_loss.item(), torch_norm.item()], rtol=0, atol=TOLERANCE)
