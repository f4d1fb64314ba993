"""What a study's data say, cell by cell: the runs that are there, their panels and the gate's verdicts."""

from __future__ import annotations

import functools
from typing import Any

from fuyu_jax.evaluate.metrics import COPIED_PHASE
from fuyu_jax.gate import Panel, Study, Verdict, decide
from fuyu_jax.gate.decision import CONTINUED
from fuyu_jax.runs.settings import sees_oracle_labels
from fuyu_jax.study.packing import Row, StudyData
from fuyu_jax.study.plan import SHUFFLED, Plan


class Results:
    """A plan with the data there are of it.

    Attributes:
      plan: what was to be run.
      data: what was.
    """

    def __init__(self, plan: Plan, data: StudyData) -> None:
        """Runs that the plan lacks, or that were made with other settings, are left out."""
        self.plan, self.data = plan, data
        self._runs: dict[tuple[str, str], list[str]] = {}
        for run in plan.runs:
            if data.has(run):
                self._runs.setdefault((run.regime, run.cell), []).append(run.name)

    def cells(self, regime: str) -> list[str]:
        """The cells of a regime with at least one run, in the plan's order."""
        return [cell for cell in self.plan.cells(regime) if (regime, cell) in self._runs]

    def runs(self, regime: str, cell: str) -> list[str]:
        """The runs of a cell."""
        return self._runs.get((regime, cell), [])

    def missing(self) -> list[str]:
        """What is planned and not there, a line a cell."""
        lines = []
        for regime in self.plan.regimes:
            for cell in self.plan.cells(regime):
                planned = sum((run.regime, run.cell) == (regime, cell) for run in self.plan.runs)
                if there := planned - len(self.runs(regime, cell)):
                    lines.append(f"`{regime}/{cell}`: {there} of {planned} runs")
        return lines

    def about(self, regime: str, cell: str) -> Row:
        """The row of `runs.csv` of a cell's first run."""
        return self.data.about(self.runs(regime, cell)[0])

    def sees_oracle(self, regime: str, cell: str) -> bool:
        """Whether a cell's arm learns from the oracle in more than the demonstrations, be it run already or not."""
        planned = next(run for run in self.plan.runs if (run.regime, run.cell) == (regime, cell))
        return sees_oracle_labels(planned.settings.to_dict())

    @functools.cache  # noqa: B019 (lives as long as the report is made)
    def panel(self, regime: str, cell: str, copied: bool = False) -> Panel | None:
        """The outcomes of a cell's policies after the last round, or after copying; None where nothing was run."""
        names = self.runs(regime, cell)
        return self.data.panel(names, COPIED_PHASE if copied else None) if names else None

    @functools.cache  # noqa: B019
    def verdicts(self, regime: str) -> dict[str, Verdict]:
        """The gate's verdict on the cells that the plan names for it, as far as the regime has them."""
        planned = self.plan.cells(regime)
        return decide({cell: self._study(regime, cell) for cell in self.plan.gate if cell in planned})

    def _study(self, regime: str, cell: str) -> Study:
        arm, continued, shuffled = (self.panel(regime, name) for name in (cell, CONTINUED, cell + SHUFFLED))
        problems = []
        copied, theirs = self.panel(regime, cell, True), self.panel(regime, CONTINUED, True)
        if copied and theirs and copied.seeds == theirs.seeds and (copied.solved != theirs.solved).any():
            problems.append(f"{CONTINUED} did not start from the same copied policies.")
        return Study(arm, continued, shuffled, tuple(problems))

    def training(self, regime: str, cell: str, kind: str, state_set: str) -> dict[tuple[str, str], float]:
        """Means over a cell's runs of what training wrote: by phase and name."""
        values: dict[tuple[str, str], list[float]] = {}
        for run in self.runs(regime, cell):
            for row in self.data.rows["training"].get(run, []):
                if (row["kind"], row["state_set"]) == (kind, state_set):
                    values.setdefault((row["phase"], row["name"]), []).append(float(row["value"]))
        return {key: sum(some) / len(some) for key, some in values.items()}

    def metric(self, regime: str, cell: str, name: str, **where: Any) -> float | None:
        """The mean over a cell's runs, and over all rows that fit, of a column of `metrics.csv`; None without one."""
        values = [
            row[name]
            for run in self.runs(regime, cell)
            for row in self.data.rows["metrics"].get(run, [])
            if all(row[key] in value if isinstance(value, tuple) else row[key] == value for key, value in where.items())
        ]
        known = [float(value) for value in values if value is not None]
        return sum(known) / len(known) if known else None
