"""As a script: loads a model folder in 4 bits, copies one batch and plays one task; prints what that took as JSON."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from task_samples import tasks as sample_tasks
from tqdm import tqdm

import vm
from fuyu_jax.controller.build import ModelOptions, build_controller
from fuyu_jax.learn.arms.bc import Cloning, CloningOptions
from fuyu_jax.learn.demos import Demonstrations
from fuyu_jax.learn.training import start_training, take_step
from fuyu_jax.policy import Policy, make_play, split_controller
from fuyu_jax.qwen3 import weight_bytes
from fuyu_jax.runs.checkpoints import tree_digest
from fuyu_jax.runs.manifest import peak_memory
from vm.prompts import longest_prompt
from vm.types import THREEFRY

KEY = jax.random.key(0, impl=THREEFRY)
TASKS = jax.tree.map(lambda leaf: leaf[3:4], sample_tasks())  # five edits from its reference


class OneTask:
    """Gives the same demonstration again and again."""

    def next_batch(self, size: int) -> Demonstrations:
        return Demonstrations(TASKS, jax.random.split(KEY, size))


def timed(told: dict[str, Any], name: str, work: Callable[[], Any]) -> Any:
    begin = time.perf_counter()
    result = jax.block_until_ready(work())
    told[f"{name}_s"], told[f"{name}_peak_gib"] = time.perf_counter() - begin, peak_memory()
    print(f"{name}: {told[f'{name}_s']:.1f} s, peak {told[f'{name}_peak_gib']:.2f} GiB", file=sys.stderr, flush=True)
    return result


def main(folder: str) -> None:
    told: dict[str, Any] = {}
    options = ModelOptions(dtype="bfloat16", quant="nf4")

    def load() -> tuple[Policy, Any]:
        with tqdm(total=weight_bytes(folder), unit="B", unit_scale=True) as progress:
            built = build_controller(
                folder,
                vm.DEFAULT_SETTINGS,
                examples=4,
                show_targets=False,
                key=KEY,
                options=options,
                advance=progress.update,
            )
            told["bytes_told"] = progress.n
        graph, params = split_controller(built.controller)
        return Policy(graph, vm.DEFAULT_SETTINGS, built.tokens, longest_prompt(built.tokens, 5)), params

    policy, params = timed(told, "load", load)
    told["bytes_kept"] = sum(leaf.nbytes for leaf in jax.tree.leaves(params.frozen))
    told["dtypes"] = sorted({leaf.dtype.name for leaf in jax.tree.leaves(params.frozen)})
    digest = tree_digest(params.frozen)

    sizes = CloningOptions(updates=1, epochs=1, tasks=1, states=2, learning_rate=1e-3, echo_weight=0.1)
    cloning, state = Cloning(policy, OneTask(), sizes), start_training(params)
    gradient, metrics = timed(told, "bc_gradient", lambda: cloning.gradient(params, KEY))
    state, step = timed(told, "bc_step", lambda: take_step(state, gradient, jnp.float32(1e-3)))
    told |= {"loss": float(metrics["loss"]), "skipped": int(step["skipped_updates"])}
    told["moved"] = tree_digest(state.params.trained) != tree_digest(params.trained)
    told["base_moved"] = tree_digest(state.params.frozen) != digest

    play, start = make_play(policy, no_repeat=True), jax.tree.map(lambda leaf: leaf[:, None], TASKS.start)
    lanes = jax.random.split(KEY, (1, 1)), jnp.asarray(True)
    budget = jnp.full((1, 1), 8, jnp.int32)
    episodes = timed(told, "rollout", lambda: play(state.params, TASKS, start, budget, *lanes))
    told["finite"] = bool(np.isfinite(np.asarray(episodes.log_prob)).all())
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
