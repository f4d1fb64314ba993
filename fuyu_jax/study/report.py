"""The study's report, made from its packed data alone: `fuyu_jax_report.md` and `fuyu_jax_report.html`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fuyu_jax.gate import Verdict
from fuyu_jax.gate.decision import CONTINUED, LEAST_EFFECT, PASS, UNDECIDABLE
from fuyu_jax.runs import markdown, page
from fuyu_jax.runs.comparison import gate_parts
from fuyu_jax.runs.document import Bullets, Document, Fold, Image, Part, Section, Text, code
from fuyu_jax.runs.plotting import Axis, bars
from fuyu_jax.runs.report_tables import ORACLE_MARK, data_table
from fuyu_jax.runs.tables import write_atomically
from fuyu_jax.runs.wording import between, points
from fuyu_jax.study import beside_original, further, tables
from fuyu_jax.study.results import Results

NAME = "fuyu_jax_report"
ANATOMY = "anatomy"  # the regime in which the original's recipe is taken apart

NOT_REPRODUCED = (
    "The original's model, Qwen3-4B in 4 bits, is loaded and trained by the same code, but these runs use the embedded "
    "model of about one million parameters, which has no pretraining: what a language model knows beforehand plays no "
    "part here.",
    "The original's tasks, its machine and the sizes of its bonuses and fines were not published. Ours follow its "
    "description, so figures of the two stand side by side and are not a contest.",
    "The original measured 16 tasks a split with one seed, ours measure more of both; what looks like the same effect "
    "may have been chance there.",
)
THREATS = (
    "One small model, one machine, one generator of tasks: whether the order of the arms holds elsewhere is not shown.",
    "Prompts come from templates. `fresh_paraphrase` holds out phrasings and no words, so it measures less than free "
    "language would.",
    "Sizes and learning rates were chosen by a few trials with a seed of their own before the plan was fixed; an arm "
    "that was tuned longer may look better. The controls share all of an arm's settings.",
    "The interval is over seeds and tasks. Five seeds say little of rare failures.",
    "Arms make as many updates with as many states each, but those that roll out or search also run programs and read "
    "states for it; the table of what was used counts both.",
)


def write_report(results: Results, folder: Path, beside: Path | None = None) -> Path:
    """Writes the report and its charts into a folder and returns the path of the Markdown file.

    `beside` has what was measured without the study's runs; see `further.sections`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _draw(results, folder)
    document = make_document(results, further.sections(results, beside, folder) if beside else ())
    write_atomically(folder / f"{NAME}.html", page.render(document, folder).encode())
    path = folder / f"{NAME}.md"
    write_atomically(path, markdown.render(document).encode())
    return path


def make_document(results: Results, more: Sequence[Section] = ()) -> Document:
    """The report as plain data; `more` comes after the original's tables."""
    plan = results.plan
    regimes = [regime for regime in plan.regimes if results.cells(regime)]
    verdicts = {regime: results.verdicts(regime) for regime in regimes}
    asked = [regime for regime in regimes if verdicts[regime]]
    gates: list[Part] = [Text(_rules())]
    for regime in asked:
        gates.append(Text(f"Regime {code(regime)}:"))
        gates += gate_parts(verdicts[regime], {cell for cell in verdicts[regime] if results.sees_oracle(regime, cell)})
    sections = [Section("The gate", gates)] if asked else []
    for regime in (regime for regime in regimes if regime != ANATOMY):
        parts: list[Part] = [tables.policies(results, regime), tables.splits(results, regime)]
        parts += [Image(f"{regime}.png", f"Solved by each policy, regime {regime}")]
        parts += [Fold("The chart's data", data_table(tables.chart_rows(results, regime)))]
        sections.append(Section(f"Policies, regime {regime}", parts))
    if ANATOMY in regimes:
        says = "Each row is a recipe, measured against the policies that the same recipe copied."
        sections.append(Section("The original's recipe taken apart", [Text(says), tables.anatomy(results, ANATOMY)]))
    if beside := beside_original.parts(results):
        sections.append(Section("The original's tables, and ours", beside))
    sections += [
        *more,
        Section("What each cell used", [tables.used(results)]),
        Section("What was not reproduced, and why", [Bullets(NOT_REPRODUCED)]),
        Section("Threats to validity", [Bullets(THREATS)]),
        Section("What ran", [Bullets(tables.what_ran(results))]),
    ]
    if missing := results.missing():
        sections.append(Section("Planned and not run yet", [Bullets(missing)]))
    return Document(plan.title, answer(verdicts), sections)


def answer(verdicts: dict[str, dict[str, Verdict]]) -> str:
    """One paragraph: which arms the gate passes in each regime, and by how much."""
    sentences = []
    for regime, found in verdicts.items():
        for result, words in ((PASS, "improve on copying"), (UNDECIDABLE, "cannot be decided yet")):
            names = [_with_effect(name, verdict) for name, verdict in found.items() if verdict.result == result]
            if names:
                sentences.append(f"In the regime {regime} these arms {words}: {'; '.join(names)}.")
        failed = [(name, verdict) for name, verdict in found.items() if verdict.result not in (PASS, UNDECIDABLE)]
        for name, verdict in failed:
            broken = ", ".join(clause.name for clause in verdict.clauses if not clause.holds)
            sentences.append(f"{_with_effect(name, verdict)} does not pass ({broken}).")
    return " ".join(sentences) or "No arm was measured against its controls yet."


def _with_effect(name: str, verdict: Verdict) -> str:
    found = verdict.comparisons.get(CONTINUED)
    if found is None:
        return name
    effect = found.solved
    return f"{name} ({points(effect.difference)} points, {between(effect.low, effect.high)})"


def _rules() -> str:
    return (
        f"An arm passes if it beats {code(CONTINUED)} and its own shuffled control, by {points(LEAST_EFFECT)} points "
        "or more on the first, and neither a seed, nor false STOPs, nor solved programs, nor any split pays for it. "
        f"{ORACLE_MARK} marks arms that learned from the oracle's labels beyond the copied demonstrations."
    )


def _draw(results: Results, folder: Path) -> None:
    for regime in results.plan.regimes:
        rows: Sequence = tables.chart_rows(results, regime)
        if rows and regime != ANATOMY:
            title = f"Solved at the budget, regime {regime} (bars: least and most of the seeds)"
            axis = Axis(title, "policy", "when", "accuracy", "solved", low="least", high="most")
            bars(folder / f"{regime}.png", axis, rows)
