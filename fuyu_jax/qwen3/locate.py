"""From the name of a model to the folder that holds it, without touching the network."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from fuyu_jax.qwen3.config import ModelError

TINY = "tiny"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(name: str) -> Path:
    """The folder of a model, in Hugging Face layout.

    Args:
      name: `tiny` (in the package; config and tokenizer only, its weights are drawn from the seed), a folder, or a
        hub id such as `Qwen/Qwen3-4B` that is in the local Hugging Face cache.

    Raises:
      ModelError: where there is no such folder and the cache does not hold the model. Nothing is ever downloaded.
    """
    if name == TINY:
        return Path(str(resources.files("fuyu_jax.models"))) / TINY
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    if name and folder.exists():
        raise ModelError(f"model {name!r} is a file; give the folder that holds config.json and the weights.")
    if not _HUB_ID.fullmatch(name):
        raise ModelError(f"model {name!r} is no folder; give 'tiny', a model folder or a hub id like 'Qwen/Qwen3-4B'.")
    return _cached_snapshot(name)


def _cached_snapshot(hub_id: str) -> Path:
    """The newest snapshot of a hub id in the local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        raise ModelError(
            f"model {hub_id!r} is neither a folder nor in the Hugging Face cache; "
            f"fetch it with `hf download {hub_id}` where there is a network, or give its folder."
        ) from None
