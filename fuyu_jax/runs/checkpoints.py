"""Checkpoints: any pytree saved whole with what made it, and restored only into the tree it was saved from.

A checkpoint is a folder with Orbax's files under `arrays/` and a `metadata.json`, which names every leaf and holds the
digest of them all. It is written beside its place and moved there, so that a folder under its final name was complete
once; the digest tells whether it still is. Containers are not stored: they come from the tree that is restored into,
so named tuples, optimiser states and `nnx.State` come back as what they are.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from fuyu_jax.runs.errors import UserError

ARRAYS, METADATA = "arrays", "metadata.json"
_PLAIN = (bool, int, float)  # Python numbers, which come back as such

Tree = TypeVar("Tree")
Metadata = dict[str, Any]


class DamagedCheckpoint(UserError):
    """A checkpoint that is incomplete or changed on disk."""


class Restored(NamedTuple):
    """A restored tree, and the metadata that was saved with it."""

    tree: Any
    metadata: Metadata


def save_checkpoint(path: Path, tree: Any, metadata: Mapping[str, Any]) -> None:
    """Saves a tree. When this returns the checkpoint is complete; when it raises there is none.

    Args:
      path: the checkpoint's folder, which must not exist yet.
      tree: a pytree of arrays of any dtype, typed keys and Python numbers.
      metadata: JSON data to keep with it.

    Raises:
      UserError: where there is something at `path`, or it cannot be written.
    """
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    leaves = _leaves(tree)
    if os.path.lexists(path):
        raise UserError(f"the checkpoint {path} exists already; give another folder.")
    arrays = _to_host(leaves)
    about = {"metadata": metadata, "leaves": _describe(leaves), "sha256": _digest(arrays)}
    text = json.dumps(about, indent=1, allow_nan=False, ensure_ascii=False)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        # Not the asynchronous kind: an error in writing has to stop the run here, not in a thread that nobody asks.
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(temporary / ARRAYS, args=ocp.args.PyTreeSave(arrays))
        (temporary / METADATA).write_text(text + "\n", encoding="utf-8")
        os.rename(temporary, path)
    except Exception as error:  # Orbax passes on whatever its storage raises
        raise UserError(
            f"the checkpoint {path} cannot be written ({_reason(error)}); free space or give another folder."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_checkpoint(path: Path, target: Any, expected: Mapping[str, Any] | None = None) -> Restored:
    """Restores a tree into the structure of `target`.

    Args:
      path: the checkpoint's folder.
      target: a tree like the saved one, which is not changed. Its leaves may be `jax.ShapeDtypeStruct`, which become
        `jax.Array`; a leaf that is a `jax.Array` says where the restored one is put.
      expected: metadata that the saved one must agree with, entry by entry; further entries are not compared.

    Raises:
      DamagedCheckpoint: where the checkpoint is missing, incomplete or was changed.
      UserError: where metadata or a leaf's name, shape or dtype differ, naming the first that does.
    """
    check_metadata(path, expected or {})
    about = _read_about(path)
    leaves = _leaves(target)
    described = _describe(leaves)
    _compare_leaves(path, about["leaves"], described)
    arrays = _read_arrays(path, {name: leaf for name, leaf in described.items() if 0 not in leaf["shape"]})
    if _digest(arrays) != about["sha256"]:
        raise DamagedCheckpoint(f"the checkpoint {path} was changed after it was saved; delete it or copy it again.")
    restored = [_like(leaf, arrays.get(name), described[name]) for name, leaf in leaves.items()]
    return Restored(jax.tree.unflatten(jax.tree.structure(target), restored), about["metadata"])


def read_metadata(path: Path) -> Metadata:
    """The metadata that was saved with a checkpoint.

    Raises:
      DamagedCheckpoint: where it is missing or cannot be read.
    """
    return _read_about(path)["metadata"]


def check_metadata(path: Path, expected: Mapping[str, Any]) -> None:
    """Refuses a checkpoint whose metadata disagree, before anything is built to restore it into.

    Raises:
      DamagedCheckpoint: where the metadata are missing or cannot be read.
      UserError: where an entry is missing or differs, naming the first that does.
    """
    if difference := first_difference(read_metadata(path), expected):
        name, there, here = difference
        raise UserError(f"the checkpoint {path} was made with {name} {there}, but here {name} is {here}.")


def tree_digest(tree: Any) -> str:
    """SHA-256 of the names, dtypes, shapes and bits of a tree's leaves, in hexadecimal."""
    return _digest(_to_host(_leaves(tree)))


@dataclass(frozen=True)
class CheckpointSeries:
    """Checkpoints of one thing in training, numbered by step. Other files in the folder are left alone.

    Attributes:
      folder: where they are; made by the first save.
    """

    folder: Path

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"step_{step}"

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, in the order of their numbers."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step_(\d+)", name)))

    def save(self, step: int, tree: Any, metadata: Mapping[str, Any]) -> None:
        """Saves a step, as `save_checkpoint` does; the metadata gets an entry `step`."""
        save_checkpoint(self.path(step), tree, {**metadata, "step": step})

    def prune(self, keep: int) -> None:
        """Removes all but the newest `keep` steps; a negative number keeps all."""
        for step in self.steps()[:-keep] if keep > 0 else []:
            self._remove(step)

    def remove_after(self, step: int) -> None:
        """Removes all later steps."""
        for later in self.steps():
            if later > step:
                self._remove(later)

    def _remove(self, step: int) -> None:
        # Under another name first: a folder that is half removed must not look like a checkpoint.
        removed = self.folder / f".{self.path(step).name}.{os.getpid()}.tmp"
        os.rename(self.path(step), removed)
        shutil.rmtree(removed, ignore_errors=True)

    def restore(
        self, target: Any, say: Callable[[str], object], expected: Mapping[str, Any] | None = None
    ) -> Restored | None:
        """Restores the newest checkpoint that is whole; None where there is none of any kind.

        Args:
          target: as in `load_checkpoint`.
          say: called with a sentence for each newer checkpoint that is damaged.
          expected: as in `load_checkpoint`.

        Raises:
          DamagedCheckpoint: where all are damaged: a run must not silently begin anew.
          UserError: where a whole one does not fit.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return load_checkpoint(self.path(step), target, expected)
            except DamagedCheckpoint as error:
                say(f"step {step} is left out: {error}")
        if steps:
            raise DamagedCheckpoint(f"no checkpoint in {self.folder} can be read; begin a new run.")
        return None


def _leaves(tree: Any) -> dict[str, Any]:
    """The leaves by name, in order."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
    if len(leaves) < len(paths):
        raise ValueError("two leaves of the tree have one name; rename a key that has a slash in it.")
    return leaves


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_host(leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The leaves as host arrays, but for those without elements, which Orbax refuses."""
    arrays = jax.device_get({n: jax.random.key_data(leaf) if _is_key(leaf) else leaf for n, leaf in leaves.items()})
    return {name: np.asarray(array) for name, array in arrays.items() if np.size(array)}


def _describe(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Kind, dtype and shape of each leaf; a typed key's are those of its data, its kind names the generator."""
    table = {}
    for name, leaf in leaves.items():
        kind = "array"
        if isinstance(leaf, _PLAIN):
            kind, leaf = type(leaf).__name__, np.asarray(leaf)
        elif _is_key(leaf):
            kind, leaf = str(leaf.dtype), jax.eval_shape(jax.random.key_data, leaf)
        table[name] = {"kind": kind, "dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    return table


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads((path / METADATA).read_text(encoding="utf-8"))
        if not {"metadata", "leaves", "sha256"} <= about.keys():
            raise ValueError("entries are missing")
    except (OSError, ValueError, AttributeError) as error:
        raise DamagedCheckpoint(
            f"the checkpoint {path} is not whole: {METADATA} cannot be read ({_reason(error)})."
        ) from error
    return about


def _read_arrays(path: Path, described: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    likes = {name: np.zeros(leaf["shape"], jnp.dtype(leaf["dtype"])) for name, leaf in described.items()}
    if not likes:
        return {}
    restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), likes)
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            return checkpointer.restore(
                (path / ARRAYS).absolute(), args=ocp.args.PyTreeRestore(likes, restore_args=restore_args)
            )
    except Exception as error:  # Orbax passes on whatever its storage raises
        raise DamagedCheckpoint(
            f"the checkpoint {path} is not whole: {ARRAYS} cannot be read ({_reason(error)})."
        ) from error


def _like(leaf: Any, array: np.ndarray | None, about: Mapping[str, Any]) -> Any:
    """A restored leaf of the target's kind; arrays without elements are not on disk."""
    array = np.zeros(about["shape"], jnp.dtype(about["dtype"])) if array is None else array
    if isinstance(leaf, _PLAIN):
        return type(leaf)(array.item())
    if isinstance(leaf, np.generic):
        return array[()]
    if isinstance(leaf, np.ndarray):
        return array
    restored = jnp.asarray(array)
    if _is_key(leaf):
        restored = jax.random.wrap_key_data(restored, impl=_generator(about["kind"]))
    # An array that was free to be moved to where it is needed must stay so.
    return jax.device_put(restored, leaf.sharding) if getattr(leaf, "committed", leaf.sharding) else restored


def _generator(kind: str) -> str:
    """The name of the generator that keys of a dtype belong to."""
    names = ("threefry2x32", "rbg", "unsafe_rbg")
    return next(n for n in names if str(jax.eval_shape(functools.partial(jax.random.key, 0, impl=n)).dtype) == kind)


def _compare_leaves(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in [*wanted, *saved]:
        if name not in saved:
            raise UserError(f"the checkpoint {path} lacks {name}; it was saved from another model or optimiser.")
        if name not in wanted:
            raise UserError(f"the checkpoint {path} has {name}, for which there is no place here.")
        if saved[name] != wanted[name]:
            raise UserError(
                f"{name} is {_in_words(saved[name])} in the checkpoint {path}, but {_in_words(wanted[name])} here."
            )


def _in_words(leaf: Mapping[str, Any]) -> str:
    kind = "" if leaf["kind"] == "array" else f"{leaf['kind']} as "
    return f"{kind}{leaf['dtype']}{list(leaf['shape'])}"


def first_difference(
    saved: Mapping[str, Any], expected: Mapping[str, Any], inside: Sequence[str] = ()
) -> tuple[str, str, str] | None:
    """The first entry of `expected` that JSON data lacks or has otherwise.

    Returns:
      The entry's dotted name and both values as JSON text, `missing` where there is none; None where all agree.
    """
    for key, value in expected.items():
        names = (*inside, str(key))
        there = saved.get(str(key), _MISSING)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            if difference := first_difference(there, value, names):
                return difference
        elif there is _MISSING or json.dumps(there) != json.dumps(value):
            return ".".join(names), "missing" if there is _MISSING else json.dumps(there), json.dumps(value)
    return None


_MISSING = object()


def _reason(error: Exception) -> str:
    """The first line of what an error says, shortened."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    line = text.strip().splitlines()[0]
    return line if len(line) < 160 else line[:157] + "..."
