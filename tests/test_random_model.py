"""Model folders of any sizes with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from qwen3_samples import SMALL, file_tensors
from safetensors.numpy import load_file

from benchmarks.random_model import QWEN3_4B, main, write_random_model
from fuyu_jax.qwen3 import Qwen3Config, load_qwen3, source_sha256, weight_bytes
from fuyu_jax.runs.errors import UserError


def test_random_folders_have_the_sizes_of_their_config(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_random_model(folder, SMALL.to_dict(), seed=3, shard_bytes=9000)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 2 and all(len(load_file(path)) == 1 or path.stat().st_size < 12000 for path in shards)
    tensors = {key: tensor for path in shards for key, tensor in load_file(path).items()}
    assert {key: tensor.shape for key, tensor in tensors.items()} == {
        key: t.shape for key, t in file_tensors(SMALL).items()
    }
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}
    kernels = np.concatenate([t.ravel() for t in tensors.values() if t.ndim == 2]).astype(np.float32)
    assert kernels.std() == pytest.approx(SMALL.initializer_range, rel=0.02)
    assert weight_bytes(folder) == sum(tensor.nbytes for tensor in tensors.values())
    digest = source_sha256(folder)
    np.testing.assert_array_equal(
        load_qwen3(folder).embed_tokens[...], tensors["model.embed_tokens.weight"].astype(np.float32)
    )
    write_random_model(folder, SMALL.to_dict(), seed=3, shard_bytes=9000)
    assert source_sha256(folder) == digest


def test_the_random_folders_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = Qwen3Config.from_dict(json.loads(QWEN3_4B.read_text(encoding="utf-8")))
    assert (sizes.num_hidden_layers, sizes.hidden_size, sizes.head_dim) == (36, 2560, 128)
    (tmp_path / "config.json").write_text(json.dumps(SMALL.to_dict()), encoding="utf-8")
    main([str(tmp_path / "model"), "--config", str(tmp_path / "config.json"), "--seed", "1"])
    assert "in 1 shards" in capsys.readouterr().out
    assert load_qwen3(tmp_path / "model").config == SMALL
    for arguments, word in (
        ([str(tmp_path)], "not an empty folder"),
        ([str(tmp_path / "other"), "--seed", "-1"], "--seed is -1"),
        ([str(tmp_path / "other"), "--config", str(tmp_path / "none.json")], "none.json does not exist"),
    ):
        with pytest.raises(UserError, match=word):
            main(arguments)
