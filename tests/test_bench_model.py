"""The benchmarks of the controller: what they compare agrees, names and ratios are right, bad input is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from qwen3_samples import SMALL
from sharded_sweeps import small_policy, some_tasks

from benchmarks import load_bench, model_bench, rollout_bench, train_bench
from benchmarks.command import main
from benchmarks.random_model import write_random_model
from benchmarks.timing import Contender
from fuyu_jax.runs.errors import UserError, run_main
from fuyu_jax.runs.settings import PilotSettings

PILOT = PilotSettings(batch_tasks=3, states_per_task=2)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs benches on a small policy and tasks made by hand, and gives what they write."""
    for module in (rollout_bench, train_bench):
        monkeypatch.setattr(module, "embedded_policy", small_policy)
        monkeypatch.setattr(module, "long_tasks", some_tasks)
    for module in (rollout_bench, train_bench, model_bench):
        monkeypatch.setattr(module, "RATIO_BATCH", 3)

    def run(*words: str) -> dict[str, Any]:
        file = tmp_path / "bench.json"
        main([*words, "--repeats", "1", "--json", str(file)])
        page = file.with_suffix(".md").read_text()
        content: dict[str, Any] = json.loads(file.read_text())
        assert all(note in page for note in content["notes"])
        return content

    return run


def cases(content: dict[str, Any]) -> set[tuple[str, int, str]]:
    return {(row["case"], row["batch"], row["unit"]) for row in content["rows"]}


@pytest.mark.slow
def test_rollouts_take_every_decision_and_give_their_ratio(
    bench: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[np.ndarray] = []
    check = rollout_bench._check_agreement

    def watch(contenders: list[Contender]) -> None:
        check(contenders)
        played.append(np.asarray(contenders[0].run().action))

    monkeypatch.setattr(rollout_bench, "_check_agreement", watch)
    content = bench("rollout", "--batches", "3")
    (action,) = played
    assert action.shape == (8, 3, 8) and (action > 0).all()
    assert len({action[:, 1, lane].tobytes() for lane in range(8)}) > 4, "the episodes of a group differ"
    assert cases(content) == {(case, 3, "decisions/s") for case in ("prompt cache", "full pass a step")}
    cached, full = content["rows"]
    assert cached["rate"] * cached["run_s"] == pytest.approx(3 * 8 * 8)
    assert cached["compile_s"] > 0
    assert content["ratios"] == {"rollout_cached_vs_full": pytest.approx(full["run_s"] / cached["run_s"])}
    lengths = small_policy()[0].prompt_ids(some_tasks(3))[1].sum(axis=1)
    assert f"padded to 64 tokens, all of them computed; {np.mean(lengths):.0f} are real" in content["notes"][1]


def test_rollouts_that_differ_or_stop_are_found() -> None:
    def contender(action: list[int], active: list[bool]) -> Contender:
        episodes = SimpleNamespace(action=np.array(action), active=np.array(active))
        return Contender("a", 1, lambda: episodes, {})

    right = contender([3, 4], [True, True])
    rollout_bench._check_agreement([right, right])
    for wrong in (contender([3, 5], [True, True]), contender([3, 4], [True, False])):
        with pytest.raises(AssertionError):
            rollout_bench._check_agreement([right, wrong])


def test_gradients_that_differ_are_found() -> None:
    contenders = [
        Contender(f"{factor}", 1, lambda factor=factor: (np.full(3, factor), {}), {}) for factor in (1.0, 1.01)
    ]
    with pytest.raises(AssertionError):
        train_bench._measure(contenders, 1)


@pytest.mark.slow
def test_training_gives_its_ratio_and_that_of_the_pilots_batch(
    bench: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_bench, "PILOT", PILOT)
    content = bench("train", "--batches", "3")
    packed, separate = "packed", "one sequence a state"
    mixes = ("8 states", "pilot")
    assert cases(content) == {(f"{case}, {mix}", 3, "states/s") for case in (packed, separate) for mix in mixes}
    seconds = {(row["case"], row["batch"]): row["run_s"] for row in content["rows"]}
    assert content["ratios"] == {
        name: pytest.approx(seconds[f"{separate}, {mix}", 3] / seconds[f"{packed}, {mix}", 3])
        for name, mix in (("train_packed_vs_separate", "8 states"), ("train_packed_vs_separate_pilot", "pilot"))
    }


def test_without_pytorch_it_is_left_out_with_a_notice(
    bench: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_bench.importlib.util, "find_spec", lambda name: None)
    content = bench("model", "--batches", "1")
    assert cases(content) == {("ours", 1, "tokens/s"), ("ours, 36 layers", 1, "tokens/s")}
    assert content["rows"][-1]["compile_s"] > 0 and content["ratios"] == {}
    assert "PyTorch is left out: it is not installed; `make parity` installs it." in content["notes"]


@pytest.mark.parity
def test_the_model_is_compared_with_pytorch(bench: Callable[..., dict[str, Any]]) -> None:
    content = bench("model", "--batches", "3")
    ours, theirs, _ = content["rows"]
    assert (ours["case"], theirs["case"]) == ("ours", "transformers on PyTorch")
    assert content["ratios"] == {"model_vs_torch": pytest.approx(ours["run_s"] / theirs["run_s"])}


def test_loading_is_measured_in_processes_of_their_own(bench: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_random_model(folder, SMALL.to_dict())
    content = bench("load", "--model", str(folder))
    assert cases(content) == {(quant, 1, unit) for quant in ("none", "int8", "nf4") for unit in ("MB/s", "GiB peak")}
    peaks = [row["rate"] for row in content["rows"] if row["unit"] == "GiB peak"]
    # A process of its own has imported JAX and little else; this one holds the whole suite.
    assert all(0.05 < peak < 2 for peak in peaks)
    assert f"Loaded is {folder}" in content["notes"][0]


def test_a_process_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"loading .*nothing with quant nf4 failed: .*config\.json"):
        load_bench.load_in_a_process(tmp_path / "nothing", "nf4")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["load", "--model", "no/such/folder"], "--model cannot be loaded: model 'no/such/folder'"),
        (["load", "--model", "tiny"], "--model cannot be loaded: "),
        (["vm", "--model", "tiny"], "--model is 'tiny' but only the bench load takes one; add load or leave it out."),
        (["train", "--batches", "0"], "--batches is '0'; use whole numbers from 1 to "),
    ],
)
def test_bad_input_is_told_in_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(main, words) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
