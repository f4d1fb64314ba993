"""A dense Qwen3 in Flax NNX: configuration, model and safetensors loader."""

from fuyu_jax.qwen3.config import Qwen3Config
from fuyu_jax.qwen3.model import PromptCache, Qwen3

__all__ = ["PromptCache", "Qwen3", "Qwen3Config"]
