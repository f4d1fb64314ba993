"""Whether a run fits into memory, as far as that is known before it starts: its model's weights are."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import jax

from fuyu_jax.qwen3 import PROJECTIONS, ModelError, read_config, resolve_model
from fuyu_jax.qwen3.locate import TINY
from fuyu_jax.qwen3.memory import GIB, weights_needed
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.policies import model_options
from fuyu_jax.runs.settings import PilotSettings

# Where Linux says how much memory a container may use, as its second and its first version of control groups do.
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_memory(settings: PilotSettings, limit: int | None = None) -> None:
    """Refuses a run whose weights alone need more memory than there is; activations come on top and are not known.

    Args:
      settings: the run's.
      limit: bytes there are; None asks the device or the machine.

    Raises:
      UserError: one sentence with both figures and what would help; or where the model cannot be found or read.
    """
    if settings.model == TINY:
        return
    limit = memory_limit() if limit is None else limit
    try:
        needed = bytes_needed(settings)
    except ModelError as error:
        raise UserError(str(error)) from error
    if limit is None or needed <= limit:
        return
    smaller = bytes_needed(replace(settings, quant="nf4", dtype="bfloat16", lora_rank=settings.lora_rank or 16))
    quantised = f"--quant nf4 --dtype bfloat16, which needs {smaller / GIB:.1f} GiB, or " if smaller <= limit else ""
    raise UserError(
        f"--model {settings.model} needs {needed / GIB:.1f} GiB for its weights and their training, but there are "
        f"{limit / GIB:.1f} GiB of memory; use {quantised}a smaller model."
    )


def bytes_needed(settings: PilotSettings) -> int:
    """Bytes of a run's weights and, where every projection has one, of the adapters with gradients and moments.

    Raises:
      ModelError: where the model cannot be found or its sizes cannot be read.
    """
    config, options = read_config(resolve_model(settings.model)), model_options(settings)
    if options.lora_rank == 0:  # the weights themselves are trained: they, their gradients and two moments, in float32
        return 4 * weights_needed(config, "none", 0, "float32").base
    need = weights_needed(config, options.quant, options.lora_rank, options.dtype)
    return sum(need) if set(options.lora_targets) == set(PROJECTIONS) else need.base


def memory_limit() -> int | None:
    """Bytes that a run can use: of the accelerator, or of the machine and the container it is in; None if unknown."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        limit = (device.memory_stats() or {}).get("bytes_limit")
        return None if limit is None else int(limit)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    for path in CONTAINER_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(limits, default=None)
