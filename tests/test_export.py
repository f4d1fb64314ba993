"""Exports: PEFT's own adapter files to the bit, merged folders against plain arithmetic, and back again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwen3_samples import SMALL, call, file_tensors, threefry, write_folder, write_parity_folder
from safetensors.numpy import load_file, save_file

from fuyu_jax.qwen3 import PROJECTIONS, ModelError, Qwen3, adapt, load_qwen3, read_config
from fuyu_jax.qwen3.export import ADAPTER_CONFIG, ADAPTER_FILE, export_adapters, export_merged, load_adapters
from fuyu_jax.qwen3.quantisation import NF4_LEVELS
from fuyu_jax.qwen3.save import new_folder, write_weights
from fuyu_jax.qwen3.weights import INDEX_FILE, LAYER_KEYS, SINGLE_FILE

GOLDEN = dict(np.load(Path(__file__).parent / "golden" / "peft_adapters.npz"))
PEFT_CONFIG = json.loads(str(GOLDEN["config"]))
PEFT_TENSORS = {key.removeprefix("file/"): value for key, value in GOLDEN.items() if key.startswith("file/")}
TENSORS = file_tensors(SMALL)
Q_PROJ_0, A_OF_Q_0 = LAYER_KEYS["q_proj"].format(layer=0), "model.layers.0.self_attn.q_proj.lora_A.weight"
IDS = jnp.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], jnp.int32)
TOLERANCE = 1e-4


def logits_of(model: Qwen3, ids: jax.Array = IDS) -> np.ndarray:
    return np.asarray(call(model, call(model, ids), method="logits"), np.float32)


def leaves(model: Qwen3) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model))]


def stir(model: Qwen3, seed: int) -> Qwen3:
    """The model with adapters drawn anew, both factors away from zero."""
    state = nnx.state(model, nnx.LoRAParam)
    old, tree = jax.tree.flatten(state)
    keys = jax.random.split(threefry(seed), len(old))
    drawn = [0.1 * jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, old, strict=True)]
    nnx.update(model, jax.tree.unflatten(tree, drawn))
    return model


def adapted(
    folder: Path, rank: int = 4, alpha: float = 6.0, targets: tuple[str, ...] = PROJECTIONS, seed: int = 1, **load: Any
) -> Qwen3:
    model = load_qwen3(folder, **load)
    adapt(model, rank, alpha, targets, nnx.Rngs(threefry(seed)))
    return stir(model, seed)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model's folder with the files that stand beside weights."""
    folder = write_folder(tmp_path_factory.mktemp("base"), SMALL, TENSORS)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (folder / "pytorch_model.bin").write_bytes(b"old")
    return folder


@pytest.fixture(scope="module")
def golden_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parity_folder(tmp_path_factory.mktemp("golden"))


def write_adapters(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config))
    save_file(dict(tensors), folder / ADAPTER_FILE)
    return folder


def test_adapters_of_peft_give_pefts_logits_and_are_written_back_to_the_bit(golden_base: Path, tmp_path: Path) -> None:
    model = load_qwen3(golden_base)
    np.testing.assert_allclose(logits_of(model, GOLDEN["ids"]), GOLDEN["base_logits"], rtol=0, atol=TOLERANCE)
    load_adapters(model, write_adapters(tmp_path / "peft", PEFT_CONFIG, PEFT_TENSORS), "some/base")
    np.testing.assert_allclose(logits_of(model, GOLDEN["ids"]), GOLDEN["logits"], rtol=0, atol=TOLERANCE)
    assert np.abs(GOLDEN["logits"] - GOLDEN["base_logits"]).max() > 1000 * TOLERANCE

    export_adapters(model, tmp_path / "ours", "some/base")
    ours = load_file(tmp_path / "ours" / ADAPTER_FILE)
    assert ours.keys() == PEFT_TENSORS.keys()
    for key, tensor in ours.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, PEFT_TENSORS[key])
    entries = json.loads((tmp_path / "ours" / ADAPTER_CONFIG).read_text())
    assert sorted(entries.pop("target_modules")) == sorted(PEFT_CONFIG["target_modules"])
    assert entries == {name: PEFT_CONFIG[name] for name in entries}


def test_adapters_come_back_bit_for_bit(base: Path, tmp_path: Path) -> None:
    model, other = adapted(base, seed=1), adapted(base, seed=2)
    assert np.abs(logits_of(model) - logits_of(other)).max() > 0.1
    export_adapters(model, tmp_path / "out", "x")
    load_adapters(other, tmp_path / "out", "x")
    jax.tree.map(np.testing.assert_array_equal, leaves(other), leaves(model))
    np.testing.assert_array_equal(logits_of(other), logits_of(model))
    fresh = load_qwen3(base)
    load_adapters(fresh, tmp_path / "out")
    assert fresh.lora == model.lora
    np.testing.assert_array_equal(logits_of(fresh), logits_of(model))


def test_an_alpha_that_is_no_whole_number_is_kept(base: Path, tmp_path: Path) -> None:
    export_adapters(adapted(base, alpha=2.5, targets=("o_proj",)), tmp_path / "out", "x")
    model = load_qwen3(base)
    load_adapters(model, tmp_path / "out")
    assert model.lora is not None and (model.lora.alpha, model.lora.scale) == (2.5, 0.625)


def without(key: str) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name != f"base_model.model.{key}"}


REFUSED: dict[str, tuple[dict[str, Any], Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], str]] = {
    "rank": ({"r": 3}, dict, "LoRA rank 3, the model has 4"),
    "alpha": ({"lora_alpha": 7}, dict, "LoRA alpha 7.0, the model has 6.0"),
    "targets": ({"target_modules": ["q_proj", "k_proj"]}, dict, r"targets \('q_proj', 'k_proj'\), the model has"),
    "base": ({"base_model_name_or_path": "other/base"}, dict, "of the base 'other/base', here it is 'x'"),
    "kind": ({"peft_type": "LOHA"}, dict, "peft_type 'LOHA'"),
    "stabilised": ({"use_rslora": True}, dict, "use_rslora True"),
    "dora": ({"use_dora": True}, dict, "use_dora True"),
    "bias": ({"bias": "all"}, dict, "bias 'all'"),
    "pattern": ({"alpha_pattern": {"q_proj": 1}}, dict, "alpha_pattern"),
    "whole_modules": ({"modules_to_save": ["lm_head"]}, dict, "modules_to_save"),
    "expression": ({"target_modules": ".*q_proj"}, dict, "target_modules '.*q_proj'"),
    "unknown": ({"target_modules": ["c_attn"]}, dict, "'c_attn'"),
    "rank_as_text": ({"r": "4"}, dict, "r '4'"),
    "missing": ({}, without(A_OF_Q_0), "lora_A.weight' is missing"),
    "deeper": (
        {},
        lambda tensors: {**tensors, "base_model.model.model.layers.3.x": np.zeros(1, np.float32)},
        "layers.3.x' in .* belongs to no adapter",
    ),
    "shape": (
        {},
        lambda tensors: {**tensors, f"base_model.model.{A_OF_Q_0}": np.zeros((4, 25), np.float32)},
        r"shape \(4, 25\)",
    ),
}


@pytest.fixture(scope="module")
def exported(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "out"
    export_adapters(adapted(base, targets=("q_proj", "up_proj")), folder, "x")
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_adapters_that_do_not_fit_are_refused_and_change_nothing(
    name: str, base: Path, exported: Path, tmp_path: Path
) -> None:
    change, edit, words = REFUSED[name]
    config = json.loads((exported / ADAPTER_CONFIG).read_text()) | change
    folder = write_adapters(tmp_path / "bad", config, edit(load_file(exported / ADAPTER_FILE)))
    model = adapted(base, targets=("q_proj", "up_proj"), seed=5)
    before = leaves(model)
    with pytest.raises(ModelError, match=words) as caught:
        load_adapters(model, folder, "x")
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    jax.tree.map(np.testing.assert_array_equal, leaves(model), before)


def test_damaged_or_absent_files_are_named(base: Path, exported: Path, tmp_path: Path) -> None:
    model = adapted(base, targets=("q_proj", "up_proj"))
    with pytest.raises(ModelError, match="adapter_config.json does not exist"):
        load_adapters(model, tmp_path)
    broken = shutil.copytree(exported, tmp_path / "broken")
    (broken / ADAPTER_FILE).write_bytes((exported / ADAPTER_FILE).read_bytes()[:-4])
    with pytest.raises(ModelError, match="adapter_model.safetensors is cut short"):
        load_adapters(model, broken)


def merged_by_hand(model: Qwen3, name: str, layer: int) -> np.ndarray:
    """A projection as files have it, in double precision."""
    adapter = model.layers.adapters[name]
    a, b = (np.asarray(factor[...][layer], np.float64) for factor in (adapter.a, adapter.b))
    return TENSORS[LAYER_KEYS[name].format(layer=layer)] + (1.5 * a @ b).T


def stored(folder: Path) -> dict[str, np.ndarray]:
    return {key: tensor for path in folder.glob("*.safetensors") for key, tensor in load_file(path).items()}


def test_merged_weights_are_the_sums_and_give_the_adapters_logits(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    said = export_merged(model, base, tmp_path / "out", jnp.float32, shard_bytes=20_000)
    assert "rank 4 merged" in said and "float32" in said and "dequantised" not in said
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2 and (tmp_path / "out" / INDEX_FILE).exists()
    tensors = stored(tmp_path / "out")
    assert tensors.keys() == TENSORS.keys()
    wanted = TENSORS | {
        LAYER_KEYS[name].format(layer=layer): merged_by_hand(model, name, layer)
        for name in PROJECTIONS
        for layer in range(SMALL.num_hidden_layers)
    }
    for key, tensor in tensors.items():
        np.testing.assert_allclose(tensor, wanted[key], rtol=0, atol=1e-6, err_msg=key)
    merged = load_qwen3(tmp_path / "out")
    np.testing.assert_allclose(logits_of(merged), logits_of(model), rtol=0, atol=TOLERANCE)
    assert np.abs(logits_of(merged) - logits_of(load_qwen3(base))).max() > 0.1


def test_merging_rounds_once_and_a_second_time_gives_the_same(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    before = leaves(model)
    export_merged(model, base, tmp_path / "exact", jnp.float32)
    export_merged(model, base, tmp_path / "first")
    export_merged(model, base, tmp_path / "second")
    jax.tree.map(np.testing.assert_array_equal, leaves(model), before)
    assert (tmp_path / "first" / SINGLE_FILE).read_bytes() == (tmp_path / "second" / SINGLE_FILE).read_bytes()
    exact, rounded = stored(tmp_path / "exact"), stored(tmp_path / "first")
    for key, tensor in rounded.items():
        assert tensor.dtype == jnp.bfloat16
        np.testing.assert_array_equal(tensor, exact[key].astype(jnp.bfloat16))
    # Rounding moves the logits about as much as rounding the bare base does, and far less than the adapters do.
    gap = np.abs(logits_of(load_qwen3(tmp_path / "first")) - logits_of(model)).max()
    plain = logits_of(load_qwen3(base))
    rounding = np.abs(logits_of(load_qwen3(base, param_dtype=jnp.bfloat16)) - plain).max()
    assert 0 < gap < 4 * rounding < 0.2 * np.abs(plain - logits_of(model)).max()


def test_the_scale_by_hand(base: Path, tmp_path: Path) -> None:
    """Rank 4, alpha 16, A = (1, 1), B = (1, 2): input (1, 2) gets (12, 24) more."""
    model = adapted(base, rank=4, alpha=16.0, targets=("q_proj",))
    adapter = model.layers.adapters["q_proj"]
    adapter.a.set_value(jnp.zeros_like(adapter.a[...]).at[:, :2, 0].set(1.0))
    adapter.b.set_value(jnp.zeros_like(adapter.b[...]).at[:, 0, :2].set(jnp.array([1.0, 2.0])[None]))
    export_merged(model, base, tmp_path / "out", jnp.float32)
    update = (stored(tmp_path / "out")[Q_PROJ_0] - TENSORS[Q_PROJ_0]).T
    np.testing.assert_allclose(np.array([1.0, 2.0]) @ update[:2, :2], [12.0, 24.0], rtol=1e-6)
    assert np.abs(update[2:]).max() == np.abs(update[:, 2:]).max() == 0


@pytest.mark.parametrize("quant", ["nf4", "int8"])
def test_a_quantised_base_is_dequantised_and_said_to_be(quant: str, base: Path, tmp_path: Path) -> None:
    model = adapted(base, quant=quant)
    said = export_merged(model, base, tmp_path / "out", jnp.float32)
    assert f"dequantised from {dict(nf4='4', int8='8')[quant]} bits ({quant})" in said
    merged = load_qwen3(tmp_path / "out")
    np.testing.assert_allclose(logits_of(merged), logits_of(model), rtol=0, atol=TOLERANCE)


def test_a_small_update_of_a_4_bit_weight_survives(tmp_path: Path) -> None:
    weight = np.resize(NF4_LEVELS, TENSORS[Q_PROJ_0].shape)  # every weight at a level, largest magnitude 1
    source = write_folder(tmp_path / "base", SMALL, {**TENSORS, Q_PROJ_0: weight})
    model = adapted(source, rank=1, alpha=1.0, targets=("q_proj",), quant="nf4")
    adapter = model.layers.adapters["q_proj"]
    adapter.a.set_value(jnp.zeros_like(adapter.a[...]).at[:, :, 0].set(0.01))
    adapter.b.set_value(jnp.zeros_like(adapter.b[...]).at[:, 0, 8].set(1.0))
    export_merged(model, source, tmp_path / "out")
    merged = load_qwen3(tmp_path / "out").layers.q_proj[...][0].T
    levels = weight.astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(np.delete(merged, 8, axis=0), np.delete(levels, 8, axis=0))
    near_zero = np.abs(weight[8]) < 0.5  # where bfloat16 tells such a change
    np.testing.assert_allclose((merged - weight)[8][near_zero], 0.01, rtol=0, atol=2e-3)
    again = load_qwen3(tmp_path / "out", quant="nf4")  # the trap: in 4 bits the update is gone
    codes = [m.layers.q_proj.get_value().codes[0] for m in (again, load_qwen3(source, quant="nf4"))]
    np.testing.assert_array_equal(*codes)


def test_the_rest_of_the_folder_is_copied_and_nothing_else(base: Path, tmp_path: Path) -> None:
    export_merged(adapted(base, targets=("q_proj",)), base, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", SINGLE_FILE, "tokenizer.json", "generation_config.json"}
    assert (tmp_path / "out" / "generation_config.json").read_text() == '{"eos_token_id": [1, 2]}'
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == SMALL.to_dict() | {"dtype": "bfloat16"}
    assert read_config(tmp_path / "out") == SMALL
    assert not list(tmp_path.glob(".*"))


def test_an_untied_model_without_adapters_is_written_whole(golden_base: Path, tmp_path: Path) -> None:
    model = load_qwen3(golden_base)
    said = export_merged(model, golden_base, tmp_path / "out", jnp.float32)
    assert "adapters" not in said
    again = load_qwen3(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, leaves(again), leaves(model))


def test_what_cannot_be_exported_is_refused(base: Path, golden_base: Path, tmp_path: Path) -> None:
    model = adapted(base, targets=("q_proj",))
    with pytest.raises(ModelError, match="no adapters"):
        export_adapters(load_qwen3(base), tmp_path / "out", "x")
    with pytest.raises(ModelError, match="is not the config of this model"):
        export_merged(model, golden_base, tmp_path / "out")
    (tmp_path / "taken").mkdir()
    for export in (lambda to: export_merged(model, base, to), lambda to: export_adapters(model, to, "x")):
        with pytest.raises(ModelError, match="taken exists already"):
            export(tmp_path / "taken")
        with pytest.raises(ModelError, match="cannot be written"):
            export(base / "config.json" / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"taken"}


def test_writing_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'w' has 3 values, its shape \(2, 2\)"), new_folder(tmp_path / "x") as folder:
        write_weights(folder, {"w": (2, 2)}, lambda _: [np.zeros(3)], np.float32)
    assert not list(tmp_path.iterdir())


def test_tensors_may_come_in_parts(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    write_weights(
        tmp_path, {"w": (6, 5), "v": (3,)}, lambda key: np.split(whole, 3) if key == "w" else [whole[0, :3]], np.float16
    )
    tensors = load_file(tmp_path / SINGLE_FILE)
    np.testing.assert_array_equal(tensors["w"], whole.astype(np.float16))
    np.testing.assert_array_equal(tensors["v"], whole[0, :3].astype(np.float16))


@pytest.mark.parity
@pytest.mark.parametrize("quant", ["none", "nf4"])
def test_transformers_opens_merged_folders(quant: str, base: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    model = adapted(base, quant=quant)
    for dtype, atol in ((jnp.float32, TOLERANCE), (jnp.bfloat16, 0.2)):
        folder = tmp_path / np.dtype(dtype).name
        export_merged(model, base, folder, dtype, shard_bytes=20_000)
        theirs, report = transformers.Qwen3ForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert theirs.dtype == getattr(torch, np.dtype(dtype).name)
        logits = theirs.float()(torch.tensor(np.asarray(IDS))).logits.detach().numpy()
        np.testing.assert_allclose(logits, logits_of(load_qwen3(folder)), rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(logits, logits_of(model), rtol=0, atol=atol)


@pytest.mark.parity
def test_peft_opens_exported_adapters(base: Path, tmp_path: Path) -> None:
    import peft
    import torch
    import transformers

    model = adapted(base)
    export_adapters(model, tmp_path / "adapters", str(base))
    theirs = peft.PeftModel.from_pretrained(transformers.Qwen3ForCausalLM.from_pretrained(base), tmp_path / "adapters")
    logits = theirs.eval()(torch.tensor(np.asarray(IDS))).logits.detach().numpy()
    np.testing.assert_allclose(logits, logits_of(model), rtol=0, atol=TOLERANCE)
