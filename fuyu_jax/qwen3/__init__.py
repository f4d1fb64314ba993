"""A dense Qwen3 in Flax NNX: configuration, model and safetensors loader."""

from fuyu_jax.qwen3.config import ModelError, Qwen3Config, read_config
from fuyu_jax.qwen3.locate import resolve_model
from fuyu_jax.qwen3.model import PromptCache, Qwen3
from fuyu_jax.qwen3.weights import load_qwen3, source_sha256

__all__ = [
    "ModelError",
    "PromptCache",
    "Qwen3",
    "Qwen3Config",
    "load_qwen3",
    "read_config",
    "resolve_model",
    "source_sha256",
]
