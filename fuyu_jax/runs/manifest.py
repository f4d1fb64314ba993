"""What a result depends on besides the settings: command, versions, commit, machine, devices and data."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from fuyu_jax.runs.errors import UserError

PACKAGES = (
    "fuyu-jax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "chex",
    "numpy",
    "scipy",
    "transformers",
    "safetensors",
)
SOURCE_ROOT = Path(__file__).resolve().parents[2]


def make_manifest(data: Mapping[str, Any], seeds: Mapping[str, int]) -> dict[str, Any]:
    """The content of `dataset_manifest.json`.

    Args:
      data: what the caller knows of its data, as the counts, refusals and digest of each split.
      seeds: every seed that the run used, by what it decides.
    """
    return {
        "command": shlex.join(sys.orig_argv),
        "seeds": dict(seeds),
        "git": git_state(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "devices": [{"platform": device.platform, "kind": device.device_kind} for device in jax.devices()],
        "machine": machine(),
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith(("JAX_", "XLA_"))},
        "data": dict(data),
    }


def check_data(manifest: Path, data: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses to go on with other data than those of a run's manifest.

    Raises:
      UserError: naming the first split whose digest differs.
    """
    saved = json.loads(manifest.read_text(encoding="utf-8"))["data"]
    for split, about in data.items():
        if saved[split]["sha256"] != about["sha256"]:
            raise UserError(f"the tasks of {split} are not those of {manifest}; go on with the version that began it.")


def package_versions() -> dict[str, str]:
    """The installed version of each package that can change a result."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def machine() -> dict[str, Any]:
    """The operating system, the processor, the cores that this process may use and the memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": cores,
        "memory_gib": round(memory / 2**30, 1),
    }


def git_state(root: Path = SOURCE_ROOT) -> dict[str, Any]:
    """The commit of the source tree and whether tracked files differ from it; `unknown` and None outside a checkout."""
    unknown = {"commit": "unknown", "dirty": None}
    # An installed package may lie inside somebody else's repository: only its own top folder counts.
    if (top := _git(root, "rev-parse", "--show-toplevel")) is None or Path(top).resolve() != root.resolve():
        return unknown
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return unknown
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))}


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    """The processor's name: Linux keeps it where `platform` does not look."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def peak_memory() -> float:
    """The most resident memory that this process has had so far, in GiB."""
    unit = 1 if sys.platform == "darwin" else 1024  # Linux counts in KiB, macOS in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
