"""Writing model folders in Hugging Face layout: part of a tensor in memory at a time, nothing half written."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fuyu_jax.qwen3.config import ModelError, Qwen3Config
from fuyu_jax.qwen3.weights import INDEX_FILE, SINGLE_FILE, key_table

SHARD_BYTES = 2 * 10**9
_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(jnp.bfloat16): "BF16"}

Shapes = Mapping[str, tuple[int, ...]]
Parts = Callable[[str], Iterable[np.ndarray]]


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to write into; it is moved there at the end, and removed where writing failed.

    Raises:
      ModelError: where there is something at `path`, or the folder cannot be written.
    """
    path = path.absolute()
    if os.path.lexists(path):
        raise ModelError(f"{path} exists already; give another folder.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        os.rename(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"{path} cannot be written ({reason}); free space or give another folder.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def key_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in a model's files by its key: those outside the layers, then layer after layer."""
    top, layers = key_table(config)
    by_layer = zip(*(rule.keys for rule in layers.values()), strict=True)
    shapes = {key: rule.shape for keys in by_layer for key, rule in zip(keys, layers.values(), strict=True)}
    return {**{key: rule.shape for rule in top.values() for key in rule.keys}, **shapes}


def write_weights(folder: Path, shapes: Shapes, parts: Parts, dtype: DTypeLike, shard_bytes: int = SHARD_BYTES) -> None:
    """Write safetensors: one file, or shards with their index where that would be larger than `shard_bytes`.

    Args:
      folder: an existing one.
      shapes: of the tensors, in the order in which they are written.
      parts: gives a tensor by its key, whole or as arrays that follow each other in row-major order; they are rounded
        to `dtype` one by one.
      dtype: float32, float16 or bfloat16.
      shard_bytes: a file is closed before it would grow beyond this; one tensor is never split.

    Raises:
      ValueError: where the parts of a tensor have not as many values as its shape.
    """
    dtype = np.dtype(dtype)
    shards = _shards(shapes, dtype.itemsize, shard_bytes)
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    names = names if len(shards) > 1 else [SINGLE_FILE]
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("wb") as stream:
            _write_file(stream, shard, parts, dtype)
    if len(shards) > 1:
        total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_json(folder / INDEX_FILE, index)


def write_json(path: Path, entries: Mapping[str, Any]) -> None:
    """Write a JSON object, indented."""
    path.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def _shards(shapes: Shapes, itemsize: int, shard_bytes: int) -> list[dict[str, tuple[int, ...]]]:
    """The tensors in groups, in order."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    used = 0
    for key, shape in shapes.items():
        size = math.prod(shape) * itemsize
        if shards[-1] and used + size > shard_bytes:
            shards.append({})
            used = 0
        shards[-1][key] = shape
        used += size
    return shards


def _write_file(stream: BinaryIO, shapes: Shapes, parts: Parts, dtype: np.dtype) -> None:
    """One safetensors file: the header's length, the header, the tensors one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[key] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for key, shape in shapes.items():
        written = sum(stream.write(part.astype(dtype, order="C").tobytes()) for part in parts(key))
        if written != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{key!r} has {written // dtype.itemsize} values, its shape {shape} asks for others.")
