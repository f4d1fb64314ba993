"""What `pilot.py --list` shows: arms, presets, and about how long each takes on this machine.

An estimate counts the states that a run learns from and the decisions that it makes, takes the rates at which a
reference machine did them (`reports/bench_model.md`), and corrects them by one quick calculation that was timed there
and is timed here. Runs that are finished here, with a preset's own settings, show their time instead.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from tabulate import tabulate

from fuyu_jax.evaluate.measure import chunk_size
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import LOG_NAME
from fuyu_jax.runs.policies import read_config
from fuyu_jax.runs.settings import ARMS, COPYING_ARMS, MAX_BUDGET, PRESETS, PilotSettings, preset_settings
from vm.behaviour import EVALUATION_SPLITS

# Of the embedded model on the reference, two cores of an AMD EPYC: `reports/bench_model.md`, the rows "train, packed,
# pilot" and "rollout, prompt cache" of 16 tasks.
STATES_A_SECOND, DECISIONS_A_SECOND = 944, 7_921
CALCULATION_SECONDS = 0.034  # processor time of `measure_slowness` there
FIXED_MINUTES = 1.5  # of any run there: compiling, making tasks, measuring baselines, the report
RUNS = Path("runs")

ABOUT = {
    "bc": "copies the oracle's repairs, and stops there",
    "bc_continued": "control: more of the same demonstrations",
    "bc_matched": "control: the oracle's repairs of as many fresh tasks as dagger sees",
    "grpo_terminal": "groups of rollouts, rewarded at their end",
    "grpo_echo": "groups of rollouts, process reward, credit by state, an anchor to the oracle's labels",
    "dagger": "the oracle's labels on the policy's own states",
    "expert_iteration": "its own verified solutions as labels of its own states",
    "process_dpo": "pairs of a repairing edit and one of its own that does not repair",
    "awr": "exact values of single edits by rollouts of the policy",
    "value_search": "how far the programs that a search tried are from what it found",
}


class Work(NamedTuple):
    """What a run makes of its model: states that it learns from, and decisions that it makes."""

    states: float
    decisions: float


def work_of(settings: PilotSettings, copies: bool = True) -> Work:
    """The states and decisions of a run, replayed demonstrations and measuring included.

    `copies` is false for a run that finds its copied policy on the shelf.
    """
    replayed = settings.batch_tasks * settings.states_per_task
    states, decisions = float(copies * settings.bc_updates * replayed), 0.0
    lanes = settings.rollout_tasks * settings.group
    if settings.arm != "bc":
        mine = settings.rollout_batch * settings.group * settings.states_per_rollout
        states += settings.updates * (mine + (replayed if settings.bc_replay else 0))
    if settings.arm not in COPYING_ARMS:
        turns = settings.updates * settings.rollout_batch / (settings.rollout_tasks * settings.reuse)
        branches = settings.states_per_rollout * settings.awr_actions * settings.awr_samples
        played = 1 + (branches if settings.arm == "awr" else 0)
        decisions += turns * lanes * played * MAX_BUDGET
    phases = settings.bc_epochs + (settings.rounds if settings.arm != "bc" else 0)
    chunk = chunk_size(settings.eval_tasks)
    tasks = len(EVALUATION_SPLITS) * -(-settings.eval_tasks // chunk) * chunk
    decisions += phases * tasks * len(settings.budgets) * max(settings.budgets)
    return Work(states, decisions)


def minutes_of(settings: PilotSettings, slowness: float, copies: bool = True) -> float:
    """About how long a run takes on a machine so many times as slow as the reference; see `work_of`."""
    work = work_of(settings, copies)
    seconds = work.states / STATES_A_SECOND + work.decisions / DECISIONS_A_SECOND
    return slowness * (FIXED_MINUTES + seconds / 60)


def measure_slowness(clock: Callable[[], float] = time.process_time) -> float:
    """The processor time of a fixed calculation of the embedded model's kind, over what the reference took for it.

    Processor time, because it is nearly the same whatever else the machine is doing. The least of several runs counts.
    """

    @jax.jit
    def calculation(x: jax.Array, inner: jax.Array, outer: jax.Array) -> jax.Array:
        for _ in range(8):
            x = x + jax.nn.silu(x @ inner) @ outer
        return x

    x, inner, outer = jnp.ones((4096, 128)), jnp.full((128, 384), 1e-3), jnp.full((384, 128), 1e-3)
    jax.block_until_ready(calculation(x, inner, outer))
    times = []
    for _ in range(9):
        begun = clock()
        jax.block_until_ready(calculation(x, inner, outer))
        times.append(clock() - begun)
    return min(times) / CALCULATION_SECONDS


def finished_runs(root: Path = RUNS) -> dict[tuple[str, str], list[float]]:
    """Minutes of the runs under a folder that ended, by arm and preset; runs with other settings are left out."""
    minutes: dict[tuple[str, str], list[float]] = {}
    for log in sorted(root.glob(f"*/{LOG_NAME}")):
        took = re.findall(r"finished: training and measuring took ([\d.]+) minutes", log.read_text(encoding="utf-8"))
        try:
            settings = PilotSettings.from_dict(read_config(log.parent))
        except (UserError, TypeError):
            continue  # no run, or one of other times
        same = preset_settings(settings.preset, settings.arm, settings.seed).command() == settings.command()
        if took and same:
            minutes.setdefault((settings.arm, settings.preset), []).append(float(took[-1]))
    return minutes


def listing(slowness: float, finished: Mapping[tuple[str, str], list[float]]) -> str:
    """The arms and presets as text, with the minutes that each takes and where the figures come from."""
    rows = []
    for arm in ARMS:
        cells = []
        for preset in PRESETS:
            if mine := finished.get((arm, preset)):
                cells.append(f"{statistics.median(mine):.1f} ({len(mine)} run{'s' if len(mine) > 1 else ''})")
            else:
                cells.append(f"about {max(1, round(minutes_of(preset_settings(preset, arm), slowness)))}")
        rows.append([arm, *cells, ABOUT[arm]])
    header = ["arm, minutes:", *PRESETS, "what it learns from"]
    sizes = ("bc_updates", "updates", "rounds", "demos", "eval_tasks", "budgets", "start")
    presets = [[name, *(preset_settings(name, ARMS[0]).to_dict()[size] for size in sizes)] for name in PRESETS]
    told = (
        f"Figures with (runs) are the median of finished runs under {RUNS}/. The others are estimates for the embedded "
        "model with nothing else running: the states and decisions that the settings ask for, at the rates of a "
        f"reference machine (two cores: {STATES_A_SECOND} states a second to learn from, {DECISIONS_A_SECOND} "
        f"decisions a second, {FIXED_MINUTES:g} minutes for all the rest), times {slowness:.2f}: a quick calculation "
        "just now took so many times as long here as there."
    )
    return "\n\n".join([tabulate(rows, header), tabulate(presets, ["preset", *sizes], disable_numparse=True), told])


def print_listing() -> None:
    """What `pilot.py --list` prints."""
    print(listing(measure_slowness(), finished_runs()))
