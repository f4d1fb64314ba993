"""A model folder in 4 bits, whole: `python -m benchmarks.full_size FOLDER` loads it, copies one batch, plays one task.

For a folder of Qwen3-4B's sizes with random weights see `benchmarks.random_model`.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import vm
from benchmarks import output
from benchmarks.timing import Report
from fuyu_jax.controller.build import ModelOptions, build_controller
from fuyu_jax.learn.arms.bc import Cloning, CloningOptions
from fuyu_jax.learn.demos import DemonstrationSource
from fuyu_jax.learn.training import start_training, take_step
from fuyu_jax.policy import Policy, make_play, split_controller
from fuyu_jax.qwen3 import weight_bytes
from fuyu_jax.rollout import repeat_lanes
from fuyu_jax.runs.checkpoints import tree_digest
from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.errors import UserError, run_main
from fuyu_jax.runs.manifest import peak_memory
from fuyu_jax.runs.progress import Progress
from vm.prompts import longest_prompt
from vm.streams import TaskStream
from vm.types import THREEFRY

KEY = jax.random.key(0, impl=THREEFRY)
OPTIONS = ModelOptions(dtype="bfloat16", quant="nf4")
STATES, BUDGET = 2, 8


def measure(folder: str) -> dict[str, Any]:
    """Seconds and peak memory (GiB, of the process so far) of each stage, and what tells that it did its work.

    Raises:
      ValueError: where the folder is no model.
    """
    told: dict[str, Any] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = jax.block_until_ready(work())
        told[f"{name}_s"], told[f"{name}_peak_gib"] = time.perf_counter() - begin, peak_memory()
        print(
            f"{name}: {told[f'{name}_s']:.1f} s, peak {told[f'{name}_peak_gib']:.2f} GiB", file=sys.stderr, flush=True
        )
        return result

    tasks, _ = TaskStream(0, "blank").next_batch(1)

    def load() -> tuple[Policy, Any]:
        with Progress("loading weights", weight_bytes(folder), unit="B") as progress:
            read = 0

            def advance(count: int) -> None:
                nonlocal read
                read += count
                progress.update(count)

            built = build_controller(
                folder,
                vm.DEFAULT_SETTINGS,
                examples=4,
                show_targets=False,
                key=KEY,
                options=OPTIONS,
                advance=advance,
            )
        told["bytes_told"] = read
        graph, params = split_controller(built.controller)
        return Policy(graph, vm.DEFAULT_SETTINGS, built.tokens, longest_prompt(built.tokens, 5)), params

    policy, params = timed("load", load)
    told["bytes_kept"] = sum(leaf.nbytes for leaf in jax.tree.leaves(params.frozen))
    told["dtypes"] = sorted({leaf.dtype.name for leaf in jax.tree.leaves(params.frozen)})
    digest = tree_digest(params.frozen)

    sizes = CloningOptions(updates=1, epochs=1, tasks=1, states=STATES, learning_rate=1e-3, echo_weight=0.1)
    cloning, state = (
        Cloning(policy, DemonstrationSource(TaskStream(0, "blank"), 0, count=1), sizes),
        start_training(params),
    )
    gradient, metrics = timed("bc_gradient", lambda: cloning.gradient(params, KEY))
    state, step = timed("bc_step", lambda: take_step(state, gradient, jnp.float32(1e-3)))
    told |= {"loss": float(metrics["loss"]), "skipped": int(step["skipped_updates"])}
    told["moved"] = tree_digest(state.params.trained) != tree_digest(params.trained)
    told["base_moved"] = tree_digest(state.params.frozen) != digest

    play, starts = make_play(policy, no_repeat=True), repeat_lanes(tasks.start, 1)
    lanes = jax.random.split(KEY, (1, 1)), jnp.asarray(True)
    budget = jnp.full((1, 1), BUDGET, jnp.int32)
    episodes = timed("rollout", lambda: play(state.params, tasks, starts, budget, *lanes))
    told["finite"] = bool(np.isfinite(np.asarray(episodes.log_prob)).all())
    return told


STAGES = {
    "load": "load and quantise",
    "bc_gradient": f"gradient of cloning, 1 task x {STATES} states",
    "bc_step": "optimiser step",
    "rollout": f"rollout of 1 task, budget {BUDGET}",
}


def main(argv: Sequence[str]) -> None:
    """Measure the folder that the command line names; print the figures as JSON and write them where asked."""
    parser = Parser("benchmarks.full_size", "Loads a model folder in 4 bits, takes one training step, plays one task.")
    parser.add_argument("folder", help="model folder in Hugging Face layout")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE, and a table (.md) beside it")
    options = parser.parse_args(argv)
    path = None if options.json is None else Path(options.json)
    if path is not None:
        output.prepare_destination(path)
    about = output.describe_machine()
    try:
        told = measure(options.folder)
    except ValueError as error:
        raise UserError(str(error)) from error
    print(json.dumps(told))
    if path is not None:
        rows = [
            {"bench": "full_size", "case": case, "batch": 1, "compile_s": 0.0, "run_s": told[f"{stage}_s"],
             "rate": told[f"{stage}_peak_gib"], "unit": "GiB peak"}
            for stage, case in STAGES.items()
        ]  # fmt: skip
        notes = [
            f"A frozen base of {told['bytes_kept'] / 2**30:.2f} GiB in NF4, computing in bfloat16; compilation is part "
            "of each time. The peak is that of the whole process so far.",
        ]
        command = shlex.join(["python", "-m", "benchmarks.full_size", *argv])
        print("written:", *output.write(path, command, about, Report(rows, {}, notes)))


if __name__ == "__main__":
    sys.exit(run_main(main))
