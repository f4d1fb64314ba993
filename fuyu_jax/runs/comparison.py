"""What `compare.py` writes: tables, charts and the gate's verdict over several runs, from their outcomes alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuyu_jax.evaluate.metrics import ALL_SPLITS, BUDGET, COPIED_PHASE, at_budget, headline, rates, sample_std
from fuyu_jax.gate import Verdict, decide
from fuyu_jax.gate.decision import MOST_ARMS, Comparison
from fuyu_jax.runs import markdown, page
from fuyu_jax.runs.document import Bullets, Document, Fold, Heading, Image, Part, Section, Table, Text, code
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.groups import Group, group_runs, is_candidate, make_study
from fuyu_jax.runs.plotting import Axis, bars
from fuyu_jax.runs.reading import FinishedRun, read_object
from fuyu_jax.runs.report_tables import ORACLE_MARK, data_table
from fuyu_jax.runs.tables import write_atomically
from fuyu_jax.runs.wording import between, number, percent, points

Row = dict[str, Any]

POLICY_COLUMNS = (
    "policy", "shuffled", "oracle_labels", "phase", "seed", "n", "accuracy_at_budget", "mean_accuracy_k048",
    "new_solved", "kept_solved", "false_stop_rate", "valid_edit_rate", "mean_steps",
)  # fmt: skip
COMPARISON_COLUMNS = (
    "arm", "oracle_labels", "control", "measure", "split", "seeds", "tasks", "difference", "low", "high", "p",
)  # fmt: skip
SEED_COLUMNS = ("arm", "control", "seed", "difference", "gained", "lost", "mcnemar_mid_p")
CLAUSE_COLUMNS = ("arm", "clause", "figure", "limit", "holds", "detail")


@dataclass(frozen=True)
class ComparedRuns:
    """Everything that is written.

    Attributes:
      groups: the runs by arm.
      verdicts: the gate's verdict on each arm that was named.
      policies: a row a policy, phase and seed; comparisons: a row a measured difference; seeds: a row a seed of one.
      clauses: a row a clause of the gate.
      runs: where each run came from and what it used.
    """

    groups: tuple[Group, ...]
    verdicts: Mapping[str, Verdict]
    policies: tuple[Row, ...]
    comparisons: tuple[Row, ...]
    seeds: tuple[Row, ...]
    clauses: tuple[Row, ...]
    runs: tuple[Row, ...]


def compare_runs(runs: Sequence[FinishedRun], arms: Sequence[str] | None = None) -> ComparedRuns:
    """Puts runs together and asks the gate about the named arms, or about every arm where none is named.

    Raises:
      UserError: for more arms than the gate takes, an arm named twice, or runs that do not belong together.
    """
    groups = group_runs(runs)
    named = [group.name for group in groups if is_candidate(group)] if arms is None else list(arms)
    if len(named) > MOST_ARMS or len(set(named)) < len(named) or not all(named):
        raise UserError(f"--arms is {','.join(named)}; name {MOST_ARMS} arms at most, each once.")
    verdicts = decide({name: make_study(name, groups) for name in named})
    oracle = {group.name: group.sees_oracle for group in groups}
    pairs = [(name, found) for name, verdict in verdicts.items() for found in verdict.comparisons.values()]
    return ComparedRuns(
        tuple(groups),
        verdicts,
        tuple(row for group in groups for row in _policy_rows(group)),
        tuple({"arm": name, "oracle_labels": oracle[name], **row} for name, found in pairs for row in _rows_of(found)),
        tuple({"arm": name, "control": found.control, **vars(pair)} for name, found in pairs for pair in found.seeds),
        tuple(
            {"arm": name, "clause": clause.name, **{key: vars(clause)[key] for key in CLAUSE_COLUMNS[2:]}}
            for name, verdict in verdicts.items()
            for clause in verdict.clauses
        ),
        tuple(
            {"policy": group.title, "folder": run.folder, **run.origin(), "counts": _counts(run)}
            for group in groups
            for run in group.runs
        ),
    )


def write_comparison(compared: ComparedRuns, folder: RunFolder) -> None:
    """Writes `compare.md`, `compare.html`, `compare.json`, a CSV of each table and the charts."""
    folder.write_csv("policies.csv", POLICY_COLUMNS, compared.policies)
    folder.write_csv("comparisons.csv", COMPARISON_COLUMNS, compared.comparisons)
    folder.write_csv("seeds.csv", SEED_COLUMNS, compared.seeds)
    folder.write_csv("clauses.csv", CLAUSE_COLUMNS, compared.clauses)
    verdicts = [
        {"arm": name, "result": found.result, "p": found.p, "adjusted_p": found.adjusted_p, "reasons": found.reasons}
        for name, found in compared.verdicts.items()
    ]
    folder.write_json(
        "compare.json",
        {
            "verdicts": verdicts,
            "clauses": compared.clauses,
            "comparisons": compared.comparisons,
            "seeds": compared.seeds,
            "policies": compared.policies,
            "runs": compared.runs,
        },
    )
    _draw(compared, folder)
    document = make_document(compared)
    write_atomically(folder.path / "compare.md", markdown.render(document).encode())
    write_atomically(folder.path / "compare.html", page.render(document, folder.path).encode())


def verdict_text(compared: ComparedRuns) -> str:
    """The gate's verdicts with each clause's figure, as Markdown."""
    return markdown.parts_text(_gate_parts(compared))


def make_document(compared: ComparedRuns) -> Document:
    """The report as plain data."""
    differences = [
        [marked(row["arm"], row["oracle_labels"]), row["control"], row["measure"], row["split"]]
        + [points(row["difference"]), between(row["low"], row["high"])]
        for row in compared.comparisons
    ]
    seeds = [
        [row["arm"], row["control"], str(row["seed"]), points(row["difference"])]
        + [f"{row['gained']} / {row['lost']}", number(row["mcnemar_mid_p"])]
        for row in compared.seeds
    ]
    names = list(dict.fromkeys(name for run in compared.runs for name in run["counts"]))
    counts = [
        [run["policy"], str(run["seed"]), *(number(run["counts"].get(name)) for name in names)] for run in compared.runs
    ]
    ran = [
        f"{code(run['policy'])}, seed {run['seed']}: {code(run['command'])}, commit {code(run['commit'])}, "
        + code(run["machine"])
        for run in compared.runs
    ]
    header = ["arm", "control", "measure", "split", "difference, points", "95 % interval"]
    sections = [
        Section("The gate", _gate_parts(compared)),
        Section(
            "Policies",
            [
                _policy_table(compared),
                Text("Mean over seeds ± sample standard deviation (n-1)."),
                *_chart_parts("accuracy", "Accuracy at budget", accuracy_rows(compared)),
            ],
        ),
        Section(
            "Differences",
            [
                Table(header, differences, text_columns=4),
                *_chart_parts("differences", "Differences with 95 % intervals", difference_rows(compared)),
            ],
        ),
        Section(
            "Each seed",
            [Table(["arm", "control", "seed", "difference, points", "gained / lost", "McNemar mid-p"], seeds, 3)],
        ),
        Section("What each run used", [Table(["policy", "seed", *names], counts, text_columns=2)]),
        Section("What ran", [Bullets(ran)]),
    ]
    says = (
        f"Learned mode, K={BUDGET} (hard_composition K=12), paired by task and seed. {ORACLE_MARK} marks arms that saw "
        "oracle labels beyond the copied demonstrations."
    )
    return Document("Arms compared", says, sections)


def _gate_parts(compared: ComparedRuns) -> list[Part]:
    oracle = {group.name for group in compared.groups if group.sees_oracle}
    return gate_parts(compared.verdicts, oracle) or [Text("No arm was compared.")]


def gate_parts(verdicts: Mapping[str, Verdict], sees_oracle: Collection[str]) -> list[Part]:
    """Each arm's verdict with the figure of every clause; arms that saw the oracle's labels are marked."""
    parts: list[Part] = []
    for name, verdict in verdicts.items():
        clauses = [
            [
                clause.name + (f" ({clause.detail})" if clause.detail else ""),
                points(clause.figure),
                points(clause.limit),
                "holds" if clause.holds else "fails",
            ]
            for clause in verdict.clauses
        ]
        parts.append(Heading(f"{marked(name, name in sees_oracle)}: {verdict.result}"))
        parts += [Bullets(verdict.reasons)] if verdict.reasons else []
        parts.append(Table(["clause", "figure, points", "limit, points", ""], clauses))
        adjusted = f"Holm-adjusted over {len(verdicts)}: {number(verdict.adjusted_p)}"
        parts.append(Text(f"One-sided p {number(verdict.p)}, {adjusted}."))
    return parts


def _chart_parts(name: str, title: str, rows: Sequence[Row]) -> list[Part]:
    return [Image(f"{name}.png", title), Fold("The chart's data", data_table(rows))]


def marked(name: str, sees_oracle: bool) -> str:
    """A name, with the mark of the oracle's labels where it saw them."""
    return name + (ORACLE_MARK if sees_oracle else "")


def _policy_rows(group: Group) -> list[Row]:
    rows = []
    for phase in dict.fromkeys((COPIED_PHASE, group.phase)):
        for run in group.runs if phase is not None else ():
            mine = run.policy.select(phase=phase)
            if not len(mine):
                continue
            found, final = headline(mine)[0], at_budget(mine)
            measured = rates(final) if found["n"] else {"n": 0}
            rows.append(
                {"policy": group.name, "shuffled": group.shuffled, "oracle_labels": group.sees_oracle, "phase": phase}
                | {"seed": run.seed, "accuracy_at_budget": found["accuracy_at_budget"]}
                | {"mean_accuracy_k048": found["mean_accuracy_k048"]}
                | {name: measured.get(name) for name in POLICY_COLUMNS if name not in _ELSEWHERE}
            )
    return rows


_ELSEWHERE = (*POLICY_COLUMNS[:5], "accuracy_at_budget", "mean_accuracy_k048")


def _rows_of(found: Comparison) -> list[Row]:
    measured = [("solved", ALL_SPLITS, found.solved), ("false_stop", ALL_SPLITS, found.false_stop)]
    if found.kept_solved is not None:
        measured.append(("kept_solved", ALL_SPLITS, found.kept_solved))
    measured += [("solved", split, interval) for split, interval in found.splits.items()]
    shared = {"control": found.control, "seeds": len(found.seeds), "tasks": found.tasks}
    return [{"measure": name, "split": split, **shared, **interval._asdict()} for name, split, interval in measured]


def _policy_means(compared: ComparedRuns) -> list[Row]:
    """A row a policy and phase: the mean of each column over seeds, with the spread, least and most of the endpoint."""
    parts: dict[tuple[str, bool, str], list[Row]] = {}
    for row in compared.policies:
        parts.setdefault((row["policy"], row["shuffled"], row["phase"]), []).append(row)
    means = []
    for (name, shuffled, phase), rows in parts.items():
        mean: Row = {"policy": name + (", shuffled" if shuffled else ""), "phase": phase, "seeds": len(rows)}
        mean["oracle_labels"] = rows[0]["oracle_labels"] and phase != COPIED_PHASE
        for column in POLICY_COLUMNS[6:]:
            values = [row[column] for row in rows if row[column] is not None]
            mean[column] = float(np.mean(values)) if values else None
            if column == "accuracy_at_budget":
                mean["std"] = sample_std(values)
                mean["least"], mean["most"] = (min(values), max(values)) if values else (None, None)
        means.append(mean)
    return means


def _policy_table(compared: ComparedRuns) -> Table:
    cells = []
    for row in _policy_means(compared):
        spread = "" if row["std"] is None else f" ± {100 * row['std']:.1f}"
        shares = [percent(row[name]) for name in ("mean_accuracy_k048", *POLICY_COLUMNS[8:12])]
        cells.append(
            [marked(row["policy"], row["oracle_labels"]), row["phase"], str(row["seeds"])]
            + [percent(row["accuracy_at_budget"]) + spread, *shares, number(row["mean_steps"])]
        )
    return Table(["policy", "phase", "seeds", *POLICY_COLUMNS[6:]], cells, text_columns=2)


def accuracy_rows(compared: ComparedRuns) -> list[Row]:
    """What the chart of accuracies shows."""
    return [
        row | {"when": "after copying" if row["phase"] == COPIED_PHASE else "after the last round"}
        for row in _policy_means(compared)
    ]


def difference_rows(compared: ComparedRuns) -> list[Row]:
    """What the chart of differences shows, in percentage points."""
    return [
        {"split": row["split"], "against": f"{row['arm']} against {row['control']}"}
        | {name: None if row[name] is None else 100 * row[name] for name in ("difference", "low", "high")}
        for row in compared.comparisons
        if row["measure"] == "solved"
    ]


def _draw(compared: ComparedRuns, folder: RunFolder) -> None:
    title = "Accuracy at budget (bars: least and most of the seeds)"
    axis = Axis(title, "policy", "when", "accuracy_at_budget", "solved", low="least", high="most")
    bars(folder.path / "accuracy.png", axis, accuracy_rows(compared))
    title = "Differences with 95 % intervals"
    axis = Axis(title, "split", "against", "difference", "points", low="low", high="high", share=False)
    bars(folder.path / "differences.png", axis, difference_rows(compared))


def _counts(run: FinishedRun) -> Mapping[str, Any]:
    """What a run used, from its `results.json`."""
    try:
        counts = read_object(run.folder / "results.json").get("counts", {})
        return {str(name): value for name, value in counts.items()}
    except (OSError, json.JSONDecodeError, AttributeError, UnicodeDecodeError) as error:
        raise UserError(f"{run.folder} has no whole results.json ({error}); give a run that ended.") from error
