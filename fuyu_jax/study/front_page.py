"""What a README says of a study: the answer, a table of the arms of each regime, and their chart."""

from __future__ import annotations

import os
from pathlib import Path

from fuyu_jax.gate.decision import CONTINUED
from fuyu_jax.gate.interval import bootstrap_t
from fuyu_jax.gate.panel import difference
from fuyu_jax.runs.comparison import marked
from fuyu_jax.runs.document import Image, Part, Table, Text, code
from fuyu_jax.runs.markdown import parts_text
from fuyu_jax.runs.marked import with_part, write_file
from fuyu_jax.runs.wording import between, percent, points
from fuyu_jax.study import tables
from fuyu_jax.study.plan import SHUFFLED
from fuyu_jax.study.report import ANATOMY, answer
from fuyu_jax.study.results import Results

README_PART = "study"


def write_part(results: Results, report: Path, readme: Path) -> None:
    """Puts the study into a README, which shows the charts in the report's folder.

    Raises:
      UserError: where the README lacks the marks or cannot be replaced.
    """
    write_file("--readme", readme.resolve(), with_part(readme, README_PART, part_text(results, report, readme)))


def part_text(results: Results, report: Path, readme: Path) -> str:
    """The part as Markdown; charts are named by their path from the README."""
    regimes = [regime for regime in results.plan.regimes if results.cells(regime) and regime != ANATOMY]
    parts: list[Part] = [Text(answer({regime: results.verdicts(regime) for regime in regimes}))]
    for regime in regimes:
        chart = os.path.relpath(report.resolve() / f"{regime}.png", readme.resolve().parent)
        parts += [Text(f"Regime {code(regime)}:"), _arms(results, regime)]
        parts += [Image(chart, f"Solved by each policy, regime {regime}")]
    return parts_text(parts)


def _arms(results: Results, regime: str) -> Table:
    """Every cell but the shuffled controls, against `bc_continued` where both have the same seeds."""
    verdicts = results.verdicts(regime)
    control = results.panel(regime, CONTINUED)
    rows = []
    for cell in (cell for cell in results.cells(regime) if not cell.endswith(SHUFFLED)):
        copied, updated = tables.both(results, regime, cell)
        shares = [percent(float(panel.solved.mean())) for panel in (copied, updated)]
        against = ["", ""]
        if control is not None and cell != CONTINUED and set(updated.seeds) <= set(control.seeds):
            change = bootstrap_t(difference(updated, control.of_seeds(updated.seeds)))
            against = [points(change.difference), between(change.low, change.high)]
        stops = percent(float(updated.false_stop.mean()))
        verdict = verdicts[cell].result if cell in verdicts else ""
        name = marked(cell, results.sees_oracle(regime, cell))
        rows.append([name, str(len(updated.seeds)), *shares, *against, stops, tables.kept(updated), verdict])
    header = ["cell", "seeds", "copied", "updated", f"against {CONTINUED}, points", "95 % interval"]
    return Table([*header, "false STOP", "kept solved", "gate"], rows)
