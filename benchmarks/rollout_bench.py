"""`bench.py rollout`: groups of sampled episodes, with each prompt encoded once or in one full pass a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.embedded import describe_prompts, embedded_policy, first, long_tasks, with_long_prompts
from benchmarks.timing import Contender, Report, compiled, measure
from fuyu_jax.controller import Readout
from fuyu_jax.evaluate.measure import lane_keys
from fuyu_jax.policy import Params, Policy
from fuyu_jax.rollout import Episodes, repeat_lanes, rollout
from vm.observation import Observation
from vm.tasks import TaskArrays
from vm.types import THREEFRY

BENCH = "rollout"
BATCHES = (1, 16)
RATIO_BATCH = 16
STEPS, GROUP = 8, 8
CACHED, FULL = "prompt cache", "full pass a step"
NEVER_STOP = -30.0  # logit of STOP


def run(batches: Sequence[int] | None, repeats: int) -> Report:
    """Measure both ways of reading states, on groups of episodes for each of that many tasks."""
    batches = batches or BATCHES
    policy, params = embedded_policy()
    policy = with_long_prompts(policy)
    tasks = long_tasks(max(batches))
    report = Report(
        notes=[
            f"A rollout is {STEPS} sampled decisions of each of {GROUP} episodes a task, the machine's runs and the "
            "choice of edits included; STOP is ruled out, so that every episode makes all of its decisions.",
            describe_prompts(policy, tasks),
        ]
    )
    ways = {CACHED: policy, FULL: dataclasses.replace(policy, full_pass=True)}
    for batch in batches:
        work = {"decisions": batch * GROUP * STEPS}
        contenders = [
            compiled(case, batch, work, sample(way), params, first(tasks, batch), lane_keys_of(batch))
            for case, way in ways.items()
        ]
        _check_agreement(contenders)
        report.rows += measure(BENCH, contenders, repeats)
    report.add_ratio("rollout_cached_vs_full", RATIO_BATCH, "decisions", (CACHED, FULL))
    return report


def lane_keys_of(batch: int) -> jax.Array:
    """A key for each episode: typed keys `[batch, GROUP]`."""
    return lane_keys(jax.random.key(0, impl=THREEFRY), jnp.arange(batch), GROUP)


def sample(policy: Policy) -> Callable[[Params, TaskArrays, jax.Array], Episodes]:
    """A function of parameters, B tasks and keys `[B, GROUP]` to episodes that go on for `STEPS` decisions."""

    def episodes(params: Params, tasks: TaskArrays, keys: jax.Array) -> Episodes:
        read = policy.reader(params, tasks)[1]

        def read_on(seen: Observation) -> Readout:
            return read(seen)._replace(stop_logit=jnp.full(seen.step.shape, NEVER_STOP, jnp.float32))

        return rollout(
            read_on,
            tasks.public,
            tasks.hidden,
            repeat_lanes(tasks.start, GROUP),
            jnp.full(keys.shape, STEPS, jnp.int32),
            steps=STEPS,
            keys=keys,
            sampled=True,
            settings=policy.settings,
        )

    return episodes


def _check_agreement(contenders: Sequence[Contender]) -> None:
    """All take every decision, and the same ones."""
    results: list[Episodes] = [contender.run() for contender in contenders]
    assert all(np.all(episodes.active) for episodes in results)
    chex.assert_trees_all_equal(*(episodes.action for episodes in results))
