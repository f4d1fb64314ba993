"""Several runs that differ in their seed only: one table of all, and the paired difference pooled over seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuyu_jax.evaluate.metrics import (
    ALL_SPLITS,
    BUDGET,
    COPIED_PHASE,
    HARD_BUDGET,
    HARD_SPLIT,
    at_budget,
    last_update,
    paired_difference,
    sample_std,
)
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.runs import original
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.figures import BASELINE_ARM
from fuyu_jax.runs.markdown import percent, points, table

MODE = "learned"
BASELINES = ("do_nothing", "random_valid", "oracle_search", "oracle_reference")
README_MARKS = ("<!-- results:begin -->", "<!-- results:end -->")


def pool_runs(folders: Sequence[Path]) -> dict[str, Any]:
    """What several runs found together, as plain data.

    Returns:
      `splits`: for each split and `all` a row with the accuracy at its budget of every baseline, and of the copied and
      the updated policy (learned mode; mean, sample standard deviation over seeds, and each seed's), with the
      difference pooled over seeds and its paired 95 % interval. `runs`: seed, command, commit and machine of each.

    Raises:
      UserError: where a folder is no finished run, or the runs differ in more than their seed.
    """
    runs = [_read(folder) for folder in folders]
    configs = [{k: v for k, v in run["config"].items() if k not in ("seed", "out")} for run in runs]
    seeds = [run["config"]["seed"] for run in runs]
    if any(config != configs[0] for config in configs) or len(set(seeds)) < len(seeds):
        raise UserError("the runs differ in more than their seed, or share one; give runs of one command, a seed each.")
    outcomes = Outcomes.concatenate([run["outcomes"].select(mode=MODE) for run in runs])
    outcomes = outcomes.take(outcomes.arm != BASELINE_ARM)
    baselines = runs[0]["outcomes"].select(arm=BASELINE_ARM)
    phase = last_update(outcomes.phase.tolist())
    if phase is None:
        raise UserError("these runs have no decision update; give runs of an arm that has one.")
    copied, updated = outcomes.select(phase=COPIED_PHASE), outcomes.select(phase=phase)
    splits = list(dict.fromkeys(outcomes.split.tolist()))
    rows = []
    for split in [*splits, ALL_SPLITS]:
        row: dict[str, Any] = {"split": split, "k": HARD_BUDGET if split == HARD_SPLIT else BUDGET}
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
    return {"arm": runs[0]["config"]["arm"], "phase": phase, "splits": rows, "runs": [_origin(run) for run in runs]}


def pooled_table(pooled: dict[str, Any]) -> str:
    """The pooled rows as a Markdown table, with the original's figures in the last row."""
    seeds = len(pooled["runs"])
    header = ["split (K)", "do nothing", "copied", "updated", "difference, points", "95 % interval", "oracle"]
    cells = []
    for row in pooled["splits"]:
        found = row["difference"]
        budget = f"{BUDGET}, hard {HARD_BUDGET}" if row["split"] == ALL_SPLITS else row["k"]
        cells.append(
            [
                f"{row['split']} ({budget})",
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
    """Write `pilot.json` and `pilot.md` into a folder and, where asked, the table into a README between its marks."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "pilot.json").write_text(json.dumps(pooled, indent=1) + "\n", encoding="utf-8")
    runs = "\n".join(
        f"- seed {run['seed']}: `{run['command']}`, commit {run['commit']}, {run['machine']}" for run in pooled["runs"]
    )
    report = out / "pilot.md"
    report.write_text(f"# The pilot over seeds\n\n{pooled_table(pooled)}\n\n## What ran\n\n{runs}\n", encoding="utf-8")
    if readme is not None:
        text = readme.read_text(encoding="utf-8")
        begin, end = (text.index(mark) for mark in README_MARKS)
        text = f"{text[:begin]}{README_MARKS[0]}\n{pooled_table(pooled)}\n{text[end:]}"
        readme.write_text(text, encoding="utf-8")
    return report


def _read(folder: Path) -> dict[str, Any]:
    try:
        config, manifest = (
            json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "dataset_manifest.json")
        )
        return {"config": config, "manifest": manifest, "outcomes": Outcomes.read(folder / "outcomes.csv")}
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is no finished run ({error}); give the folder of a run that ended.") from error


def _origin(run: dict[str, Any]) -> dict[str, Any]:
    manifest = run["manifest"]
    machine = manifest["machine"]
    return {
        "seed": run["config"]["seed"],
        "command": manifest["command"],
        "commit": manifest["git"]["commit"] + (" with local changes" if manifest["git"]["dirty"] else ""),
        "machine": f"{machine['processor']}, {machine['cores']} cores",
        "packages": manifest["packages"],
    }


def _of(outcomes: Outcomes, split: str) -> Outcomes:
    rows = at_budget(outcomes)
    return rows if split == ALL_SPLITS else rows.select(split=split)


def _with_spread(cell: dict[str, Any]) -> str:
    spread = "" if cell["std"] is None else f" ± {100 * cell['std']:.1f}"
    return f"{percent(cell['mean'])}{spread}"
