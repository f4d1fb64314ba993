"""`bench.py train`: the gradient of copying, with a task's states packed behind one prompt or one sequence a state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import chex
import jax

import vm
from benchmarks.embedded import describe_prompts, embedded_policy, first, long_tasks, with_long_prompts
from benchmarks.timing import Contender, Report, Row, compiled, measure
from fuyu_jax.learn.states import States, oracle_states
from fuyu_jax.learn.training import Gradients, Metrics
from fuyu_jax.policy import Params, Policy
from fuyu_jax.recipes import demonstrations, make_cloning
from fuyu_jax.runs.settings import PilotSettings
from vm.tasks import TaskArrays
from vm.types import THREEFRY

BENCH = "train"
BATCHES = (8, 64)
RATIO_BATCH = 64
STEPS = 8
PACKED, SEPARATE = "packed", "one sequence a state"
PILOT = PilotSettings()


def run(batches: Sequence[int] | None, repeats: int) -> Report:
    """Measure both ways of reading a batch of that many tasks, and both on the batch of the `pilot` preset."""
    batches = batches or BATCHES
    policy, params = embedded_policy()
    long_policy = with_long_prompts(policy)
    tasks = long_tasks(max(batches))
    pilot_tasks = vm.TaskStream(PILOT.seed).next_batch(PILOT.batch_tasks)[0]
    mixes = {
        f"{STEPS} states": f"A trajectory is {STEPS} states. {describe_prompts(long_policy, tasks)}",
        "pilot": f"The pilot's batch is {PILOT.states_per_task} states of each of {PILOT.batch_tasks} train tasks. "
        f"{describe_prompts(policy, pilot_tasks)}",
    }
    report = Report(
        notes=[
            "Measured is the whole gradient of the cloning loss, ECHO included, labels and optimiser left out.",
            *mixes.values(),
        ]
    )
    long_mix, pilot_mix = mixes
    for batch in batches:
        contenders = _contenders(long_mix, long_policy, params, first(tasks, batch), STEPS)
        report.rows += _measure(contenders, repeats)
    contenders = _contenders(pilot_mix, policy, params, pilot_tasks, PILOT.states_per_task)
    report.rows += _measure(contenders, repeats)
    for name, mix, batch in (
        ("train_packed_vs_separate", long_mix, RATIO_BATCH),
        ("train_packed_vs_separate_pilot", pilot_mix, PILOT.batch_tasks),
    ):
        report.add_ratio(name, batch, "states", (f"{PACKED}, {mix}", f"{SEPARATE}, {mix}"))
    return report


def cloning_gradient(policy: Policy) -> Callable[[Params, TaskArrays, States], tuple[Gradients, Metrics]]:
    """The gradient of what the pilot's copying minimises, as a function of parameters, tasks and labelled states."""
    return make_cloning(PILOT, policy, demonstrations(PILOT))._gradient


def _contenders(mix: str, policy: Policy, params: Params, tasks: TaskArrays, states: int) -> list[Contender]:
    """The gradient on `states` states of the oracle's repair of each task, packed and one by one."""
    batch = len(tasks.family)
    key = jax.random.key(0, impl=THREEFRY)
    labelled = oracle_states(tasks, jax.random.split(key, batch), jax.random.fold_in(key, 1), states, policy.settings)
    ways = {PACKED: policy, SEPARATE: dataclasses.replace(policy, full_pass=True)}
    return [
        compiled(f"{case}, {mix}", batch, {"states": batch * states}, cloning_gradient(way), params, tasks, labelled)
        for case, way in ways.items()
    ]


def _measure(contenders: Sequence[Contender], repeats: int) -> list[Row]:
    """Rows of contenders that give the same gradient up to rounding."""
    chex.assert_trees_all_close(*(contender.run()[0] for contender in contenders), atol=2e-5, rtol=2e-3)
    return measure(BENCH, contenders, repeats)
