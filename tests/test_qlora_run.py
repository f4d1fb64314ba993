"""Training a model folder: the base, quantised or not, stays as it is; adapters, heads and state embedder move."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_samples import tasks as sample_tasks

import vm
from benchmarks import rollout_bench
from benchmarks.random_model import write_random_model
from fuyu_jax import pilot
from fuyu_jax.controller.build import ModelOptions, build_controller
from fuyu_jax.learn.arms.bc import Cloning, CloningOptions
from fuyu_jax.learn.demos import Demonstrations
from fuyu_jax.learn.training import TrainState, start_training, take_step
from fuyu_jax.policy import Params, Policy, split_controller
from fuyu_jax.qwen3 import PROJECTIONS, Qwen3Config, source_sha256
from fuyu_jax.runs.arguments import parse_runs
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.policies import build_policy
from vm.prompts import longest_prompt
from vm.types import THREEFRY

# No projection but down_proj reads a multiple of 64, so that blocks end short.
SIZES = Qwen3Config(
    vocab_size=168, hidden_size=40, intermediate_size=64, num_hidden_layers=2, num_attention_heads=3,
    num_key_value_heads=1, head_dim=10, rope_theta=1e6, tie_word_embeddings=True, initializer_range=0.15,
)  # fmt: skip
KEY = jax.random.key(7, impl=THREEFRY)
RANK, ALPHA = 4, 8.0
QUICK = [("none", "float32"), ("nf4", "bfloat16")]
KINDS = [
    pytest.param(quant, dtype, marks=() if (quant, dtype) in QUICK else pytest.mark.slow)
    for dtype in ("float32", "bfloat16")
    for quant in ("none", "int8", "nf4")
]
LOSS_TOLERANCE = 0.02  # relative, of bfloat16 against float32: its numbers have 8 bits, a few rounded layers deep
QUANT_TOLERANCE = 0.05  # relative, of a quantised base against the whole one


class Trained(NamedTuple):
    """A policy before and after one step of copying, with the loss of that step."""

    policy: Policy
    before: Params
    state: TrainState
    loss: float
    source: dict[str, Any]


class FixedSource:
    """Gives the same demonstrations again and again."""

    def next_batch(self, size: int) -> Demonstrations:
        return Demonstrations(sample_tasks(), jax.random.split(KEY, size))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "random"
    write_random_model(path, SIZES.to_dict(), shard_bytes=20_000)
    assert len(list(path.glob("*.safetensors"))) > 2
    return path


@pytest.fixture(scope="module")
def trained(folder: Path):
    """One step of copying with a model folder kept and computed in a given way."""

    @functools.cache
    def train(quant: Any, dtype: str) -> Trained:
        options = ModelOptions(dtype=dtype, quant=quant, lora_rank=RANK, lora_alpha=ALPHA)
        built = build_controller(
            str(folder), vm.DEFAULT_SETTINGS, examples=4, show_targets=False, key=KEY, options=options
        )
        graph, params = split_controller(built.controller)
        before = jax.tree.map(np.array, params)  # copies, in case a step would write in place
        policy = Policy(graph, vm.DEFAULT_SETTINGS, built.tokens, longest_prompt(built.tokens, 5))
        count = len(sample_tasks().family)
        sizes = CloningOptions(updates=1, epochs=1, tasks=count, states=3, learning_rate=1e-3, echo_weight=0.1)
        gradient, metrics = Cloning(policy, FixedSource(), sizes).gradient(params, KEY)
        state, _ = take_step(start_training(params), gradient, jnp.float32(1e-2))
        return Trained(policy, before, state, float(metrics["loss"]), built.source)

    return train


def by_name(tree: Any) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path).removesuffix(".value"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.parametrize(("quant", "dtype"), KINDS)
def test_the_frozen_base_is_bit_identical_after_a_step(trained, quant: str, dtype: str) -> None:
    run: Trained = trained(quant, dtype)
    before, after = by_name(run.before.frozen), by_name(run.state.params.frozen)
    assert before.keys() == after.keys()
    for name, leaf in before.items():
        assert leaf.dtype == after[name].dtype and leaf.tobytes() == after[name].tobytes(), name
    codes = [name for name, leaf in before.items() if leaf.dtype in (np.uint8, np.int8)]
    assert len(codes) == (0 if quant == "none" else len(PROJECTIONS))
    if quant == "none":
        assert {leaf.dtype for leaf in before.values()} == {jnp.dtype(dtype)}


@pytest.mark.parametrize(("quant", "dtype"), KINDS)
def test_what_is_trained_is_float32_and_holds_nothing_of_the_base(trained, quant: str, dtype: str) -> None:
    state: TrainState = trained(quant, dtype).state
    names = by_name(state.params.trained)
    assert {leaf.dtype for leaf in names.values()} == {np.dtype(np.float32)}
    moments = [leaf for leaf in jax.tree.leaves(state.opt) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(moments) >= len(names) and {leaf.dtype for leaf in moments} == {jnp.dtype(jnp.float32)}
    assert sum(leaf.size for leaf in moments) <= 2 * sum(leaf.size for leaf in names.values())
    trunk = {name for name in names if name.startswith("['trunk']")}
    adapters = {f"['trunk']['layers']['adapters']['{name}']['{part}']" for name in PROJECTIONS for part in "ab"}
    assert trunk == adapters
    assert {name.split("'")[1] for name in names} == {"trunk", "embedder", "heads"}


@pytest.mark.parametrize(("quant", "dtype"), KINDS)
def test_the_first_step_moves_b_and_not_a(trained, quant: str, dtype: str) -> None:
    """b begins at zero, so a has no gradient yet."""
    run: Trained = trained(quant, dtype)
    before, after = by_name(run.before.trained), by_name(run.state.params.trained)
    for name in before:
        moved = not np.array_equal(before[name], after[name])
        if "['adapters']" in name:
            assert moved == name.endswith("['b']"), name
            assert np.any(before[name]) != name.endswith("['b']"), name
    for part in ("embedder", "heads"):
        assert any(not np.array_equal(before[name], after[name]) for name in before if name.startswith(f"['{part}']"))


@pytest.mark.parametrize(("quant", "dtype"), KINDS)
def test_losses_agree(trained, quant: str, dtype: str) -> None:
    run: Trained = trained(quant, dtype)
    assert run.loss == pytest.approx(trained("none", "float32").loss, rel=QUANT_TOLERANCE + LOSS_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["none", "int8", "nf4"])
def test_losses_agree_in_both_precisions(trained, quant: str) -> None:
    assert trained(quant, "bfloat16").loss == pytest.approx(trained(quant, "float32").loss, rel=LOSS_TOLERANCE)


@pytest.mark.parametrize(
    ("quant", "dtype"), [pytest.param("none", "float32", marks=pytest.mark.slow), ("nf4", "bfloat16")]
)
def test_episodes_are_played(trained, quant: str, dtype: str) -> None:
    run: Trained = trained(quant, dtype)
    tasks = sample_tasks()
    episodes = jax.jit(rollout_bench.sample(run.policy))(
        run.state.params, tasks, rollout_bench.lane_keys_of(len(tasks.family))
    )
    log_prob = np.asarray(episodes.log_prob)
    assert log_prob.dtype == np.float32 and np.isfinite(log_prob).all() and (log_prob < 0).all()
    assert len(np.unique(episodes.action)) > 10


def test_the_ways_of_keeping_and_computing_differ(trained) -> None:
    """Otherwise the tests above would compare a model with itself."""
    assert len({trained(quant, dtype).loss for quant, dtype in QUICK}) == len(QUICK)


@pytest.mark.parametrize(("quant", "dtype"), KINDS)
def test_the_source_names_what_it_was(trained, folder: Path, quant: str, dtype: str) -> None:
    assert trained(quant, dtype).source == {
        "name": str(folder), "weights": source_sha256(folder), "layers": 2, "hidden_size": 40, "dtype": dtype,
        "quant": quant, "lora": {"rank": RANK, "alpha": ALPHA, "targets": list(PROJECTIONS)},
    }  # fmt: skip


@pytest.mark.slow
def test_the_main_job_runs_on_a_quantised_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying, a decision update and the report; the base stays, and the manifest says which model it was."""
    phases: dict[str, Params] = {}
    train = pilot.Pilot._phases

    def watched(*args: Any) -> Iterator[tuple[str, Params]]:
        for phase, params in train(*args):
            phases[phase] = params
            yield phase, params

    monkeypatch.setattr(pilot.Pilot, "_phases", watched)
    monkeypatch.chdir(tmp_path)  # copied policies are kept under the working folder
    out = tmp_path / "run"
    little = shlex.split(
        "--preset smoke --bc_updates 2 --bc_epochs 1 --updates 2 --rounds 1 --batch_tasks 4 --rollout_tasks 4 "
        "--rollout_batch 4 --group 2 --states_per_task 2 --states_per_rollout 2 --eval_tasks 2 --budgets 0,2 "
        f"--oracle_width 1 --seed 3 --quant nf4 --dtype bfloat16 --lora_rank 4 --lora_alpha 8 --model {folder}"
    )
    assert run_main(pilot.main, [*little, "--out", str(out)]) == 0
    assert list(phases) == ["bc_policy", "grpo_echo_r1_policy"]
    copied, updated = phases.values()
    base = build_policy(parse_runs(little)[0]).params.frozen
    chex.assert_trees_all_equal(base, copied.frozen, updated.frozen)
    moved = {name: np.any(leaf != by_name(copied.trained)[name]) for name, leaf in by_name(updated.trained).items()}
    assert all(moved[name] for name in moved if "['adapters']" in name)
    model = json.loads((out / "dataset_manifest.json").read_text())["model"]
    assert model["weights"] == source_sha256(folder)
    assert (model["name"], model["quant"], model["dtype"]) == (str(folder), "nf4", "bfloat16")
    assert model["lora"] == {"rank": RANK, "alpha": ALPHA, "targets": list(PROJECTIONS)}
    report = (out / "report.md").read_text()
    assert "--quant nf4" in report and "grpo_echo_r1_policy" in (out / "metrics.csv").read_text()
    assert not re.search(r"\bnan\b", (out / "train_log.csv").read_text(), re.IGNORECASE)
