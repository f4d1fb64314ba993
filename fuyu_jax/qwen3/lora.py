"""LoRA (arXiv 2106.09685) on a frozen Qwen3, in full precision or quantised (QLoRA, arXiv 2305.14314)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from fuyu_jax.qwen3.layers import PROJECTIONS, Adapted, Kernel, layer_shapes
from fuyu_jax.qwen3.model import Qwen3
from fuyu_jax.qwen3.quantisation import dequantise

__all__ = ["PROJECTIONS", "Adapted", "Adapter", "Frozen", "LoraSpec", "adapt", "freeze", "merged_kernel"]


class Frozen(nnx.Variable):
    """A weight that is never trained: `nnx.split(model, nnx.Param, ...)` puts it into the last state."""


@dataclass(frozen=True)
class LoraSpec:
    """What adapters a model has; stored with them, because the weights alone tell neither alpha nor the targets' order.

    Attributes:
      rank: width of the adapters.
      alpha: numerator of the scale.
      targets: the adapted projections, a subset of `PROJECTIONS` in their order.

    Raises:
      ValueError: where a number is out of range, or the targets are none, unknown or named twice.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse adapters that would train nothing."""
        if self.rank < 1:
            raise ValueError(f"LoRA rank is {self.rank}; use a whole number from 1.")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"LoRA alpha is {self.alpha}; use a number above 0.")
        if not self.targets:
            raise ValueError(f"LoRA has no target, so nothing would be trained; name some of {', '.join(PROJECTIONS)}.")
        for name in self.targets:
            if name not in PROJECTIONS:
                raise ValueError(f"LoRA target {name!r} matches no projection; use some of {', '.join(PROJECTIONS)}.")
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"LoRA targets {', '.join(self.targets)} name a projection twice; name each once.")
        object.__setattr__(self, "targets", tuple(name for name in PROJECTIONS if name in self.targets))

    @property
    def scale(self) -> float:
        """Factor of the adapters' product: alpha / rank."""
        return self.alpha / self.rank


class Adapter(nnx.Module):
    """The adapters of one projection in all layers, float32: `a` `[layers, in, rank]` and `b` `[layers, rank, out]`.

    `a` is uniform in +-1/sqrt(in) and `b` is zero, as PEFT draws them, so that a fresh adapter changes nothing.
    """

    def __init__(self, layers: int, shape: tuple[int, int], spec: LoraSpec, *, rngs: nnx.Rngs) -> None:
        """Draw the adapters of a stacked `(in, out)` kernel."""
        width_in, width_out = shape
        bound = width_in**-0.5
        drawn = jax.random.uniform(rngs.params(), (layers, width_in, spec.rank), jnp.float32, -bound, bound)
        self.a = nnx.LoRAParam(drawn)
        self.b = nnx.LoRAParam(jnp.zeros((layers, spec.rank, width_out), jnp.float32))
        self.scale = spec.scale


def freeze(model: Qwen3) -> None:
    """Turn every `nnx.Param` of a model, embedding, norms and head included, into `Frozen`, in place."""
    for module in (model, model.layers):
        for name, variable in list(vars(module).items()):
            if isinstance(variable, nnx.Param):
                setattr(module, name, Frozen(variable.get_value()))


def adapt(model: Qwen3, rank: int, alpha: float, targets: Sequence[str], rngs: nnx.Rngs) -> None:
    """Freeze a model and add fresh adapters to some projections of every layer, in place.

    Args:
      model: as loaded or built; its weights are taken as they are.
      rank: width of the adapters.
      alpha: the adapters' product is scaled by alpha / rank.
      targets: names from `PROJECTIONS`.
      rngs: source of the initial adapters.

    Raises:
      ValueError: where `LoraSpec` refuses the numbers or targets, or the model has adapters already.
    """
    spec = LoraSpec(rank, alpha, tuple(targets))
    if model.lora is not None:
        raise ValueError(f"the model has adapters already (rank {model.lora.rank}); adapt a freshly loaded one.")
    freeze(model)
    for name in spec.targets:
        width_in, width_out = layer_shapes(model.config)[name]
        layers = model.config.num_hidden_layers
        model.layers.adapters[name] = Adapter(layers, (width_in, width_out), spec, rngs=rngs)
    model.lora = spec


def merged_kernel(model: Qwen3, name: str, layer: int) -> jax.Array:
    """One projection of one layer as a plain float32 kernel `[in, out]`: `base + scale * a @ b`.

    The base is dequantised where it is quantised. Keep the result in 16 bits or more: small updates vanish when the sum
    is quantised again.
    """
    width_in, _ = layer_shapes(model.config)[name]
    kernel: Kernel = getattr(model.layers.weights(), name)
    return _merge(jax.tree.map(lambda leaf: leaf[layer], kernel), width_in)


@partial(jax.jit, static_argnames="width_in")
def _merge(kernel: Kernel, width_in: int) -> jax.Array:
    if isinstance(kernel, Adapted):
        update = jnp.matmul(kernel.a, kernel.b, precision=jax.lax.Precision.HIGHEST)
        return dequantise(kernel.base, width_in) + kernel.scale * update
    return dequantise(kernel, width_in)
