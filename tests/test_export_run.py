"""`python -m fuyu_jax.export`: a saved policy becomes files that read back as the same arrays."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwen3_samples import call, file_tensors, write_folder
from safetensors import safe_open
from safetensors.numpy import load_file

from fuyu_jax.controller import Controller
from fuyu_jax.export import main
from fuyu_jax.qwen3 import Qwen3, load_adapters, load_qwen3, read_config, resolve_model
from fuyu_jax.runs import policies
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.policies import PolicyFolder, about_policy, build_policy
from fuyu_jax.runs.settings import PilotSettings
from fuyu_jax.tokenizer import load_tokenizer

build_once = functools.cache(build_policy)
IDS = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)
LORA = {"lora_rank": 3, "lora_alpha": 12.0, "lora_targets": "q_proj,down_proj"}


@pytest.fixture(autouse=True)
def quick_building(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a model's weights compiles; policies of the same settings are drawn once."""
    monkeypatch.setattr(policies, "build_policy", build_once)


def save_run(folder: Path, settings: PilotSettings) -> tuple[Path, Controller]:
    """A run with one policy, moved away from where it began; and that policy."""
    built = build_once(settings)
    leaves, tree = jax.tree.flatten(built.params.trained)
    rng = np.random.default_rng(0)
    moved = [leaf + rng.normal(0, 0.05, leaf.shape).astype(np.float32) for leaf in leaves]
    params = built.params._replace(trained=jax.tree.unflatten(tree, moved))
    run = RunFolder.create(str(folder), folder.name)
    run.write_json("config.json", settings.to_dict())
    PolicyFolder.of_run(run.path).save("bc_policy", params.trained, about_policy(settings, built.source))
    return run.path, built.policy.controller(params)


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Controller]:
    return save_run(tmp_path_factory.mktemp("runs") / "tiny", PilotSettings(preset="smoke", seed=5, public=2))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = read_config(resolve_model("tiny"))
    folder = write_folder(tmp_path_factory.mktemp("base"), config, file_tensors(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(resolve_model("tiny") / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def lora_run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Controller]:
    settings = PilotSettings(preset="smoke", public=2, model=str(base), quant="nf4", **LORA)
    return save_run(tmp_path_factory.mktemp("runs") / "lora", settings)


def logits_of(model: Qwen3) -> np.ndarray:
    return np.asarray(call(model, call(model, IDS), method="logits"))


def check_controller_file(path: Path, controller: Controller, run: Path) -> None:
    """Every array of heads and embedder is there, under the name by which the controller has it."""
    tensors = load_file(path)
    for name, tensor in tensors.items():
        place: object = controller
        for part in name.split("."):
            place = place[int(part)] if part.isdigit() else getattr(place, part)
        assert isinstance(place, nnx.Param) and tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, place[...])
    everything = len(jax.tree.leaves(nnx.state(controller))) - len(jax.tree.leaves(nnx.state(controller.trunk)))
    assert len(tensors) == everything
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()
    assert about["phase"] == "bc_policy"
    assert json.loads(about["settings"]) == json.loads((run / "config.json").read_text())


def test_the_embedded_model_becomes_a_whole_folder(
    tiny_run: tuple[Path, Controller], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, controller = tiny_run
    main(["--run", str(run), "--out", str(tmp_path / "out")])
    assert "bc_policy" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model", "controller.safetensors"}
    check_controller_file(tmp_path / "out" / "controller.safetensors", controller, run)
    again = load_qwen3(tmp_path / "out" / "model")
    wanted, got = (jax.tree.leaves(nnx.state(model)) for model in (controller.trunk, again))
    jax.tree.map(np.testing.assert_array_equal, got, wanted)
    text = "the sum of"
    assert load_tokenizer(tmp_path / "out" / "model").encode(text) == load_tokenizer(resolve_model("tiny")).encode(text)


def test_adapters_fit_their_base_again(lora_run: tuple[Path, Controller], base: Path, tmp_path: Path) -> None:
    run, controller = lora_run
    main(["--run", str(run), "--phase", "bc_policy", "--out", str(tmp_path / "out")])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"adapters", "controller.safetensors"}
    check_controller_file(tmp_path / "out" / "controller.safetensors", controller, run)
    model = load_qwen3(base, quant="nf4")
    before = logits_of(model)
    load_adapters(model, tmp_path / "out" / "adapters", str(base))
    np.testing.assert_array_equal(logits_of(model), logits_of(controller.trunk))
    assert np.abs(logits_of(model) - before).max() > 0.01


def test_merged_weights_are_16_bit_and_near_the_policys(
    lora_run: tuple[Path, Controller], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, controller = lora_run
    main(["--run", str(run), "--out", str(tmp_path / "out"), "--merged"])
    assert "rank 3 merged into the base's weights dequantised from 4 bits (nf4), in bfloat16" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model", "controller.safetensors"}
    tensors = load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(jnp.bfloat16)}
    wanted, got = logits_of(controller.trunk), logits_of(load_qwen3(tmp_path / "out" / "model"))
    assert 0 < np.sqrt(np.mean((got - wanted) ** 2)) < 0.03 * np.std(wanted)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--run", "{run}", "--out", "{run}"], "exists already"),
        (["--run", "{run}/nowhere", "--out", "{out}"], "is no run"),
        (["--run", "{run}", "--phase", "nothing", "--out", "{out}"], "use one of bc_policy"),
        (["--run", "{run}", "--out", "{run}/config.json/x"], "cannot be written"),
        (["--run", "{run}", "--output", "{out}"], "--out"),
        (["--run", "{run}"], "--out"),
    ],
)
def test_bad_commands_end_with_one_sentence_and_write_nothing(
    options: list[str],
    words: str,
    tiny_run: tuple[Path, Controller],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [word.replace("{run}", str(tiny_run[0])).replace("{out}", str(tmp_path / "out")) for word in options]
    assert run_main(main, filled) == 2
    message = capsys.readouterr().err
    assert words in message and message.startswith("error: ") and message.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parity
def test_transformers_opens_the_embedded_model(tiny_run: tuple[Path, Controller], tmp_path: Path) -> None:
    import torch
    import transformers

    run, controller = tiny_run
    main(["--run", str(run), "--out", str(tmp_path / "out")])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert isinstance(theirs, transformers.Qwen3ForCausalLM) and theirs.dtype == torch.float32
    logits = theirs(torch.tensor(np.asarray(IDS))).logits.detach().numpy()
    np.testing.assert_allclose(logits, logits_of(controller.trunk), rtol=0, atol=1e-4)
