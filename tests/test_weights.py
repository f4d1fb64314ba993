"""Loading model folders: every tensor lands where it belongs, and every damaged folder is refused in one sentence."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen3_samples import SMALL, call, file_tensors, write_folder
from safetensors.numpy import save_file

from fuyu_jax.qwen3 import ModelError, Qwen3, Qwen3Config, load_qwen3, read_config, resolve_model, source_sha256
from fuyu_jax.qwen3.weights import INDEX_FILE, LAYER_KEYS, SINGLE_FILE

Q_PROJ_1 = "model.layers.1.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"
TENSORS = file_tensors(SMALL)
KEYS = sorted(TENSORS)
SHARDS = (KEYS[:11], KEYS[11:20], KEYS[20:])


def refuses(folder: Path, *words: str) -> None:
    """The load stops with one sentence that holds all the words, however the weights would be kept."""
    for quant in ("none", "int8", "nf4"):
        with pytest.raises(ModelError) as caught:
            load_qwen3(folder, quant=quant)
        message = str(caught.value)
        assert all(word in message for word in words), message
        assert message.endswith(".") and "\n" not in message


def without(*keys: str) -> dict[str, np.ndarray]:
    return {key: tensor for key, tensor in TENSORS.items() if key not in keys}


@pytest.mark.parametrize("shards", [(), SHARDS], ids=["one_file", "shards"])
def test_every_tensor_lands_transposed_and_in_its_layer(shards: tuple[list[str], ...], tmp_path: Path) -> None:
    model = load_qwen3(write_folder(tmp_path, SMALL, TENSORS, shards))
    np.testing.assert_array_equal(model.embed_tokens[...], TENSORS[EMBEDDING])
    np.testing.assert_array_equal(model.norm[...], TENSORS["model.norm.weight"])
    for name, key in LAYER_KEYS.items():
        stacked = getattr(model.layers, name)[...]
        for layer in range(SMALL.num_hidden_layers):
            np.testing.assert_array_equal(stacked[layer], TENSORS[key.format(layer=layer)].T)
    fresh = nnx.eval_shape(lambda: Qwen3(SMALL, rngs=nnx.Rngs(0)))
    assert nnx.split(model)[0] == nnx.split(fresh)[0]


def test_square_kernels_are_transposed_too(tmp_path: Path) -> None:
    # The sizes of the smallest Qwen3 with their proportions kept: k and v are square, q and o are not.
    config = replace(SMALL, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    tensors = file_tensors(config)
    ramp = (10 * np.arange(32)[:, None] + np.arange(32)[None]).astype(np.float32)
    tensors["model.layers.0.self_attn.k_proj.weight"] = ramp
    model = load_qwen3(write_folder(tmp_path, config, tensors))
    shapes = {name: getattr(model.layers, name)[...].shape[1:] for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    assert shapes == {"q_proj": (32, 64), "k_proj": (32, 32), "v_proj": (32, 32), "o_proj": (64, 32)}
    assert model.layers.k_proj[...][0, 3, 7] == ramp[7, 3] == 73


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
def test_file_dtypes(dtype: type, param_dtype: type, tmp_path: Path) -> None:
    stored = {key: tensor.astype(dtype) for key, tensor in TENSORS.items()}
    stored["model.norm.weight"][:3] = np.array([1, 257, 3.14159], np.float32).astype(dtype)
    model = load_qwen3(write_folder(tmp_path, SMALL, stored), param_dtype=param_dtype)
    assert model.norm[...].dtype == param_dtype
    wanted = stored["model.norm.weight"].astype(np.float32).astype(param_dtype)
    np.testing.assert_array_equal(model.norm[...], wanted)
    if dtype is ml_dtypes.bfloat16:
        np.testing.assert_array_equal(wanted[:3].astype(np.float32), [1, 256, 3.140625])


def test_the_computation_runs_in_the_asked_dtype(tmp_path: Path) -> None:
    model = load_qwen3(write_folder(tmp_path, SMALL, TENSORS), dtype=jnp.bfloat16)
    assert call(model, jnp.zeros((1, 3), jnp.int32)).dtype == jnp.bfloat16
    assert model.embed_tokens[...].dtype == jnp.float32


def test_untied_head(tmp_path: Path) -> None:
    untied = replace(SMALL, tie_word_embeddings=False)
    tensors = file_tensors(untied)
    model = load_qwen3(write_folder(tmp_path / "whole", untied, tensors))
    np.testing.assert_array_equal(model.lm_head[...], tensors["lm_head.weight"].T)
    refuses(
        write_folder(tmp_path / "headless", untied, TENSORS),
        "'lm_head.weight'",
        "headless",
        "tie_word_embeddings to true",
    )


def test_a_tied_head_may_be_stored_when_it_is_the_embedding(tmp_path: Path) -> None:
    same = {**TENSORS, "lm_head.weight": TENSORS[EMBEDDING].copy()}
    model = load_qwen3(write_folder(tmp_path / "same", SMALL, same))
    assert not hasattr(model, "lm_head")
    other = {**TENSORS, "lm_head.weight": TENSORS[EMBEDDING] + 1}
    refuses(write_folder(tmp_path / "other", SMALL, other), "'lm_head.weight'", "tie_word_embeddings")


def test_missing_unknown_and_misshapen_tensors(tmp_path: Path) -> None:
    refuses(write_folder(tmp_path / "a", SMALL, without(Q_PROJ_1)), Q_PROJ_1, "missing")
    extra = {**TENSORS, "model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)}
    refuses(write_folder(tmp_path / "b", SMALL, extra), "q_proj.bias", SINGLE_FILE)
    deeper = {**TENSORS, "model.layers.3.mlp.up_proj.weight": TENSORS["model.layers.2.mlp.up_proj.weight"]}
    refuses(write_folder(tmp_path / "c", SMALL, deeper), "model.layers.3.mlp.up_proj.weight")
    turned = {**TENSORS, Q_PROJ_1: np.ascontiguousarray(TENSORS[Q_PROJ_1].T)}
    refuses(write_folder(tmp_path / "d", SMALL, turned), Q_PROJ_1, "(24, 64)", "(64, 24)")
    integers = {**TENSORS, Q_PROJ_1: TENSORS[Q_PROJ_1].astype(np.int8)}
    refuses(write_folder(tmp_path / "e", SMALL, integers), Q_PROJ_1, "I8")


def damage(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "pointer": (
        damage(lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "git lfs pull",
    ),
    "last_4_bytes_cut": (damage(lambda data: data[:-4]), "cut short"),
    "header_cut": (damage(lambda data: data[:100]), "cut short"),
    "empty": (damage(lambda _: b""), "empty"),
    "not_safetensors": (damage(lambda _: b"\x80\x04pickled"), "not safetensors"),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("shards", [(), SHARDS], ids=["one_file", "shards"])
def test_damaged_files(name: str, shards: tuple[list[str], ...], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SMALL, TENSORS, shards)
    apply, word = DAMAGES[name]
    victim = sorted(folder.glob("*.safetensors"))[-1]
    apply(victim)
    refuses(folder, word, victim.name)


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, 10_000))
def test_a_file_cut_anywhere_is_refused(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_folder(tmp_path_factory.mktemp("cut"), SMALL, TENSORS)
    path = folder / SINGLE_FILE
    data = path.read_bytes()
    path.write_bytes(data[: cut * (len(data) - 1) // 10_000])
    refuses(folder, SINGLE_FILE)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    gone = write_folder(tmp_path / "gone", SMALL, TENSORS, SHARDS)
    (gone / "model-00002-of-00003.safetensors").unlink()
    refuses(gone, "model-00002-of-00003.safetensors", "missing", "download")

    unlisted = write_folder(tmp_path / "unlisted", SMALL, TENSORS, SHARDS)
    index = json.loads((unlisted / INDEX_FILE).read_text())
    del index["weight_map"][Q_PROJ_1]
    (unlisted / INDEX_FILE).write_text(json.dumps(index))
    refuses(unlisted, Q_PROJ_1, "does not list")

    stale = write_folder(tmp_path / "stale", SMALL, TENSORS, SHARDS)
    index["weight_map"][Q_PROJ_1] = "model-00001-of-00003.safetensors"
    (stale / INDEX_FILE).write_text(json.dumps(index))
    refuses(stale, Q_PROJ_1, "model-00001-of-00003.safetensors", "lacks")

    twice = write_folder(tmp_path / "twice", SMALL, TENSORS, SHARDS)
    save_file({key: TENSORS[key] for key in (*SHARDS[0], KEYS[-1])}, twice / "model-00001-of-00003.safetensors")
    refuses(twice, KEYS[-1], "both")

    outside = write_folder(tmp_path / "outside", SMALL, TENSORS, SHARDS)
    (outside / INDEX_FILE).write_text(json.dumps({"weight_map": dict.fromkeys(KEYS, "../gone/other.safetensors")}))
    refuses(outside, "outside")

    for number, text in enumerate(("{", "[]", '{"weight_map": 3}')):
        broken = write_folder(tmp_path / f"broken{number}", SMALL, TENSORS, SHARDS)
        (broken / INDEX_FILE).write_text(text)
        refuses(broken, INDEX_FILE, "copy")


def test_stray_files_are_ignored(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SMALL, TENSORS, SHARDS)
    digest = source_sha256(folder)
    save_file({Q_PROJ_1: TENSORS[Q_PROJ_1] + 1}, folder / "model-00004-of-00004.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    np.testing.assert_array_equal(load_qwen3(folder).layers.q_proj[...][1], TENSORS[Q_PROJ_1].T)
    assert source_sha256(folder) == digest


def test_pickled_weights_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SMALL, TENSORS)
    (folder / SINGLE_FILE).rename(folder / "pytorch_model.bin")
    refuses(folder, "pytorch_model.bin", "pickled", "convert")


def test_the_checksum_sees_one_flipped_bit_and_the_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", SMALL, TENSORS)
    digest = source_sha256(folder)
    assert len(digest) == 64 and digest == source_sha256(write_folder(tmp_path / "b", SMALL, TENSORS))
    data = bytearray((folder / SINGLE_FILE).read_bytes())
    data[-1] ^= 1
    (folder / SINGLE_FILE).write_bytes(data)
    flipped = source_sha256(folder)
    write_folder(folder, replace(SMALL, rope_theta=1e4), TENSORS)
    assert len({digest, flipped, source_sha256(folder)}) == 3


UNSUPPORTED = {
    "other_family": ({"model_type": "qwen2"}, "'qwen2'"),
    "llama": ({"model_type": "llama"}, "'llama'"),
    "rope_scaling": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
    "rope_scaling_old_key": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
    "rope_parameters": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "'yarn'"),
    "sliding_window": ({"use_sliding_window": True, "sliding_window": 4096}, "sliding-window"),
    "attention_bias": ({"attention_bias": True}, "attention_bias"),
    "hidden_act": ({"hidden_act": "gelu"}, "'gelu'"),
    "no_head_dim": ({"head_dim": None}, "'head_dim'"),
    "no_rope": ({"rope_theta": None}, "'rope_theta'"),
    "heads_do_not_group": ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
    "odd_head": ({"head_dim": 15}, "head_dim is 15"),
    "size_as_text": ({"hidden_size": "24"}, "hidden_size is '24'"),
    "rope_parameters_as_text": ({"rope_parameters": "default"}, "rope_parameters is 'default'"),
    "rope_scaling_as_text": ({"rope_scaling": "x"}, "rope_scaling is 'x'"),
    "layer_types_as_number": ({"layer_types": 3}, "layer_types is 3"),
    "theta_as_text": ({"rope_theta": "abc"}, "rope_theta is 'abc'"),
    "theta_as_list": ({"rope_theta": [1]}, "rope_theta is [1]"),
    "huge_theta": ({"rope_theta": 10**400}, "rope_theta is not finite"),
    "epsilon_as_text": ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
    "no_range": ({"initializer_range": None}, "initializer_range is None"),
    "negative_theta": ({"rope_theta": -1.0}, "rope_theta is -1.0"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_configs_refused_by_name(name: str, tmp_path: Path) -> None:
    change, word = UNSUPPORTED[name]
    refuses(write_folder(tmp_path, {**SMALL.to_dict(), **change}, TENSORS), word, str(tmp_path / "config.json"))


@pytest.mark.parametrize("name", ["config.json", SINGLE_FILE])
def test_a_folder_in_place_of_a_file_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SMALL, TENSORS)
    (folder / name).unlink()
    (folder / name).mkdir()
    refuses(folder, f"{folder / name} is a folder")


def test_config_round_trip_and_both_places_of_the_rope_base(tmp_path: Path) -> None:
    assert Qwen3Config.from_dict(SMALL.to_dict()) == SMALL
    entries = SMALL.to_dict()
    theta = entries.pop("rope_theta")
    newer = {**entries, "rope_parameters": {"rope_type": "default", "rope_theta": theta}, "rope_scaling": None}
    assert Qwen3Config.from_dict(newer) == SMALL
    assert Qwen3Config.from_dict({**newer, "sliding_window": 4096, "use_sliding_window": False}) == SMALL
    (tmp_path / "config.json").write_text("not json")
    with pytest.raises(ModelError, match="is not JSON"):
        read_config(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        read_config(tmp_path / "nowhere")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty hub cache, and sockets that fail the test."""

    def connect(*_: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_models_are_found_without_a_network(no_network: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", SMALL, TENSORS)
    assert resolve_model(str(folder)) == folder
    assert read_config(resolve_model("tiny")).hidden_size == 128

    snapshot = no_network / "models--Some--Model" / "snapshots" / ("0" * 40)
    write_folder(snapshot, SMALL, TENSORS)
    (no_network / "models--Some--Model" / "refs").mkdir()
    (no_network / "models--Some--Model" / "refs" / "main").write_text("0" * 40)
    assert resolve_model("Some/Model") == snapshot


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Qwen/Qwen3-4B", "hf download Qwen/Qwen3-4B"),
        ("./nowhere/model", "no folder"),
        ("tinny", "'tiny'"),
        ("Qwen/Qwen3..4B", "hf download"),
        ("", "no folder"),
    ],
)
def test_absent_models_are_told_at_once(name: str, word: str, no_network: Path) -> None:
    with pytest.raises(ModelError, match=word) as caught:
        resolve_model(name)
    assert str(caught.value).count(". ") == 0


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match="is a file"):
        resolve_model(str(tmp_path / "model.safetensors"))
