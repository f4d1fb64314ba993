"""Writes a run's policy in files that others open: `python -m fuyu_jax.export --help`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from fuyu_jax.controller import Controller
from fuyu_jax.qwen3 import ModelError, export_adapters, export_merged, resolve_model
from fuyu_jax.qwen3.save import new_folder
from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.errors import UserError, run_script
from fuyu_jax.runs.policies import LoadedPolicy, load_policy

ADAPTERS, MODEL, CONTROLLER_FILE = "adapters", "model", "controller.safetensors"
_AROUND = ("embedder", "heads")  # the parts of a controller that are around its trunk


def export_policy(loaded: LoadedPolicy, folder: Path, merged: bool = False) -> list[str]:
    """Write a saved policy.

    The folder gets `controller.safetensors`, heads and state embedder in float32 under their names in the controller,
    with the run's settings in its header; and the trunk: `adapters/` in PEFT's layout, or `model/` in that of
    `transformers`. A trunk that was trained whole has no adapters and goes to `model/` in float32, as it was trained.

    Args:
      loaded: the policy.
      folder: must not exist.
      merged: whether adapters are merged into their base, in bfloat16, in place of being written alone.

    Returns:
      One sentence for each thing that was written.

    Raises:
      ModelError: where the folder exists or cannot be written, or the base model's folder is not the one that it was.
    """
    controller = loaded.policy.controller(loaded.params)
    trunk, name = controller.trunk, loaded.settings.model
    about = {"phase": loaded.phase, "settings": json.dumps(loaded.settings.to_dict())}
    with new_folder(folder) as temporary:
        tensors = controller_tensors(controller)
        save_file(tensors, temporary / CONTROLLER_FILE, metadata=about)
        said = [f"{CONTROLLER_FILE}: heads and state embedder, {len(tensors)} tensors."]
        if trunk.lora is None or merged:
            dtype = jnp.float32 if trunk.lora is None else jnp.bfloat16
            said.append(f"{MODEL}/: {export_merged(trunk, resolve_model(name), temporary / MODEL, dtype)}")
        else:
            export_adapters(trunk, temporary / ADAPTERS, name)
            said.append(f"{ADAPTERS}/: adapters of rank {trunk.lora.rank} for the base {name}.")
    return said


def controller_tensors(controller: Controller) -> dict[str, np.ndarray]:
    """The arrays of a controller's heads and state embedder by their dotted names, such as `heads.stop.out.kernel`."""
    return {
        ".".join((part, *map(str, path))): np.ascontiguousarray(value[...])
        for part in _AROUND
        for path, value in nnx.to_flat_state(nnx.state(getattr(controller, part)))
    }


def main(argv: Sequence[str]) -> None:
    """Export the policy that the command line names, and say what was written."""
    parser = Parser("python -m fuyu_jax.export", "Writes a run's policy: its trunk, its heads and its state embedder.")
    parser.add_argument("--run", required=True, type=Path, help="folder of the run")
    parser.add_argument("--phase", help="which of its policies, as in bc_policy (default: the last)")
    parser.add_argument("--checkpoint_dir", help="where its checkpoints are, if not where the run says")
    parser.add_argument("--out", required=True, type=Path, help="folder to write; must not exist")
    parser.add_argument("--merged", action="store_true", help="merge adapters into their base, in bfloat16")
    parser.add_argument("--model", help="where the base model is, if it was moved")
    options = parser.parse_args(argv)
    if options.out.exists():  # before minutes of loading
        raise UserError(f"--out is {options.out}, which exists already; give another folder.")
    loaded = load_policy(options.run, options.phase, options.checkpoint_dir, options.model, alone=True)
    try:
        said = export_policy(loaded, options.out, options.merged)
    except ModelError as error:
        raise UserError(str(error)) from error
    print(f"{options.out}: {loaded.phase} of {options.run}")
    print("\n".join((*said, *loaded.notes)))


if __name__ == "__main__":
    run_script("fuyu_jax.export")
