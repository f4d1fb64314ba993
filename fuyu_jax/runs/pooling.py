"""Several runs that differ in their seed only: one table of all, and the paired difference pooled over seeds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuyu_jax.evaluate.metrics import (
    ALL_SPLITS,
    BUDGET,
    COPIED_PHASE,
    HARD_BUDGET,
    at_budget,
    budget,
    paired_difference,
    sample_std,
)
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.runs import original
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.figures import BASELINE_ARM
from fuyu_jax.runs.markdown import table
from fuyu_jax.runs.marked import with_part, write_file
from fuyu_jax.runs.reading import MODE, FinishedRun, read_run
from fuyu_jax.runs.wording import percent, points

BASELINES = ("do_nothing", "random_valid", "oracle_search", "oracle_reference")
README_PART = "results"  # what the table is called in a README


def pool_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """What several runs found together, as plain data.

    Returns:
      `splits`: for each split and `all` a row with the accuracy at its budget of every baseline, and of the copied and
      the updated policy (learned mode; mean, sample standard deviation over seeds, and each seed's), with the
      difference pooled over seeds and its paired 95 % interval. `runs`: seed, command, commit and machine of each.

    Raises:
      UserError: where a folder is no finished run or lacks a baseline, the copied or an updated policy at its budget,
        or the runs differ in more than their seed.
    """
    runs = [read_run(folder) for folder in folders]
    _check_together(runs)
    seeds = [run.seed for run in runs]
    phase = runs[0].last_phase
    outcomes, baselines = Outcomes.concatenate([run.policy for run in runs]), runs[0].outcomes.select(arm=BASELINE_ARM)
    copied, updated = outcomes.select(phase=COPIED_PHASE), outcomes.select(phase=phase)
    splits = list(dict.fromkeys(outcomes.split.tolist()))
    rows = []
    for split in [*splits, ALL_SPLITS]:
        row: dict[str, Any] = {"split": split, "k": budget(split)}
        for name in BASELINES:
            row[name] = float(_of(baselines.select(phase=name), split).solved.mean())
        for name, side in (("copied", copied), ("updated", updated)):
            each = [float(_of(side.select(seed=seed), split).solved.mean()) for seed in seeds]
            false_stop = float(_of(side, split).false_stop.mean())
            mean = sum(each) / len(each)
            row[name] = {"mean": mean, "std": sample_std(each), "seeds": each, "false_stop": false_stop}
        row["difference"] = asdict(paired_difference(updated, copied, split))
        row["each_seed"] = [
            asdict(paired_difference(updated.select(seed=seed), copied.select(seed=seed), split)) for seed in seeds
        ]
        rows.append(row)
    return {"arm": runs[0].arm, "phase": phase, "splits": rows, "runs": [run.origin() for run in runs]}


def pooled_table(pooled: dict[str, Any]) -> str:
    """The pooled rows as a Markdown table, with the original's figures in the last row."""
    seeds = len(pooled["runs"])
    header = ["split (K)", "do nothing", "copied", "updated", "difference, points", "95 % interval", "oracle"]
    cells = []
    for row in pooled["splits"]:
        found = row["difference"]
        k = f"{BUDGET}, hard {HARD_BUDGET}" if row["split"] == ALL_SPLITS else row["k"]
        cells.append(
            [
                f"{row['split']} ({k})",
                percent(row["do_nothing"]),
                _with_spread(row["copied"]),
                _with_spread(row["updated"]),
                points(found["difference"]),
                f"{points(found['low'])} to {points(found['high'])}",
                percent(row["oracle_reference"]),
            ]
        )
    theirs = {row["phase"]: row for row in original.HEADLINE if row["mode"] in ("learned", "k=8")}
    before, after = (
        next(
            row for row in original.HEADLINE if (row["arm"], row["phase"], row["mode"]) == (original.GRPO, phase, MODE)
        )
        for phase in ("bc_policy", "grpo_echo_r1_policy")
    )
    blank = sum(row["do_nothing"] for row in original.HEADROOM) / len(original.HEADROOM)
    cells.append(
        [
            "*the original, all (8)*",
            percent(blank),
            percent(before["k8_accuracy"]),
            percent(after["k8_accuracy"]),
            points(after["k8_accuracy"] - before["k8_accuracy"]),
            "not reported",
            percent(theirs["oracle_teacher"]["k8_accuracy"]),
        ]
    )
    note = (
        f"Learned mode, `{pooled['arm']}`: mean over {seeds} seeds ± sample standard deviation; the interval is paired "
        "by task, each task averaged over the seeds."
    )
    return f"{table(header, cells)}\n\n{note}"


def write_pool(pooled: dict[str, Any], out: Path, readme: Path | None) -> Path:
    """Write `pilot.json` and `pilot.md` into a folder and, where asked, the table into a README between its marks.

    Raises:
      UserError: where the README or the folder cannot be used; then no file is changed.
    """
    runs = "\n".join(
        f"- seed {run['seed']}: `{run['command']}`, commit {run['commit']}, {run['machine']}" for run in pooled["runs"]
    )
    report = out / "pilot.md"
    files = {
        out / "pilot.json": json.dumps(pooled, indent=1) + "\n",
        report: f"# The pilot over seeds\n\n{pooled_table(pooled)}\n\n## What ran\n\n{runs}\n",
    }
    new_readme = None if readme is None else with_part(readme, README_PART, pooled_table(pooled))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be made a folder ({error.strerror}); give another folder.") from error
    for path in files:
        if path.is_dir() or not os.access(out, os.W_OK):
            raise UserError(f"--out {out}: {path.name} cannot be written there; give another folder.")
    for path, content in files.items():
        write_file("--out", path, content)
    if readme is not None and new_readme is not None:
        write_file("--readme", readme.resolve(), new_readme)
    return report


def _measured(run: FinishedRun) -> list[tuple[str, int]]:
    """Split and index of the tasks that every phase measured, refused where one lacks some or there is no update."""
    phase = run.last_phase
    if phase is None:
        raise UserError(f"{run.folder} has no decision update in its {MODE} mode; give runs of an arm that has one.")
    baselines = run.outcomes.select(arm=BASELINE_ARM)
    tasks = _tasks(baselines.select(phase=BASELINES[0]), run, BASELINES[0])
    for side, names in ((baselines, BASELINES), (run.policy, (COPIED_PHASE, phase))):
        for name in names:
            if _tasks(side.select(phase=name), run, name) != tasks:
                raise UserError(
                    f"{run.folder}: {name} and {BASELINES[0]} are of different tasks; give a run that ended."
                )
    return tasks


def _tasks(rows: Outcomes, run: FinishedRun, phase: str) -> list[tuple[str, int]]:
    """Split and index of the tasks that a phase measured, refused where it lacks a split at its budget."""
    for split in dict.fromkeys(run.outcomes.split.tolist()):
        k = budget(split)
        if not len(rows.select(split=split, k=k)):
            raise UserError(
                f"{run.folder} has no outcomes of {phase} in {split} at K={k}; give a run that measured them."
            )
    final = at_budget(rows)
    return sorted(set(zip(final.split.tolist(), final.task.tolist(), strict=True)))


def _check_together(runs: Sequence[FinishedRun]) -> None:
    """Refuse runs that are not whole, differ in more than their seed, or share one."""
    tasks = [_measured(run) for run in runs]
    first, seeds = runs[0], set()
    for run, mine in zip(runs, tasks, strict=True):
        if run.settings() != first.settings() or run.seed in seeds:
            raise UserError(
                f"{run.folder} differs from {first.folder} in more than its seed, or shares a seed; "
                "give runs of one command, a seed each."
            )
        if run.last_phase != first.last_phase:
            raise UserError(
                f"{run.folder} ends with {run.last_phase}, {first.folder} with {first.last_phase}; "
                "give runs with as many rounds."
            )
        if mine != tasks[0]:
            raise UserError(f"{run.folder} and {first.folder} measured different tasks; give runs of one set of tasks.")
        seeds.add(run.seed)


def _of(outcomes: Outcomes, split: str) -> Outcomes:
    rows = at_budget(outcomes)
    return rows if split == ALL_SPLITS else rows.select(split=split)


def _with_spread(cell: dict[str, Any]) -> str:
    spread = "" if cell["std"] is None else f" ± {100 * cell['std']:.1f}"
    return f"{percent(cell['mean'])}{spread}"
