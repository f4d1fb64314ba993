"""A dense Qwen3 in Flax NNX: configuration, model, safetensors loader, quantised kernels, LoRA and exports."""

from fuyu_jax.qwen3.config import ModelError, Qwen3Config, read_config
from fuyu_jax.qwen3.export import export_adapters, export_merged, load_adapters
from fuyu_jax.qwen3.locate import resolve_model
from fuyu_jax.qwen3.lora import PROJECTIONS, LoraSpec, adapt, merged_kernel
from fuyu_jax.qwen3.model import PromptCache, Qwen3
from fuyu_jax.qwen3.weights import load_qwen3, source_sha256, weight_bytes

__all__ = [
    "LoraSpec",
    "ModelError",
    "PROJECTIONS",
    "PromptCache",
    "Qwen3",
    "Qwen3Config",
    "adapt",
    "export_adapters",
    "export_merged",
    "load_adapters",
    "load_qwen3",
    "merged_kernel",
    "read_config",
    "resolve_model",
    "source_sha256",
    "weight_bytes",
]
