"""What a study runs, and which arms its gate is asked about: read from a TOML file that is written before the runs.

The file has a `title`; `gate`, the cells that the gate is asked about; `common`, options of every run; a table of
options for each regime under `regimes`; and `cells`. A cell is an arm with options of its own, run in some regimes
with the seeds 0 to `seeds` - 1; `shuffled = true` runs it again with its own signal permuted. Options are those of
`pilot.py`, and a cell's win over its regime's, those over the common ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuyu_jax.gate.decision import CONTINUED, MOST_ARMS
from fuyu_jax.runs.arguments import parse_runs
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.settings import PilotSettings

SHUFFLED = "_shuffled"  # what the name of a cell's control ends with
PLAN_KEYS = ("title", "gate", "common", "regimes", "cells")
CELL_KEYS = ("name", "arm", "regimes", "seeds", "options", "shuffled")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study.

    Attributes:
      regime, cell: where in the grid it stands; the cell of a shuffled control ends with `_shuffled`.
      settings: all of the run, but for where it writes.
    """

    regime: str
    cell: str
    settings: PilotSettings

    @property
    def name(self) -> str:
        """The run's name, which is that of its folder."""
        return f"{self.regime}-{self.cell}-s{self.settings.seed}"


@dataclass(frozen=True)
class Plan:
    """A study.

    Attributes:
      title: what it asks.
      gate: the cells that the gate is asked about, in every regime that has them.
      regimes: their names, in order.
      runs: every run, regime by regime and seed by seed: what shares a copied policy stands together, so that a study
        that stops early has whole seeds, and one that goes on on another machine copies no policy twice.
    """

    title: str
    gate: tuple[str, ...]
    regimes: tuple[str, ...]
    runs: tuple[PlannedRun, ...]

    def cells(self, regime: str) -> list[str]:
        """The names of a regime's cells, in order."""
        return list(dict.fromkeys(run.cell for run in self.runs if run.regime == regime))


def read_plan(file: Path) -> Plan:
    """The plan in a file.

    Raises:
      UserError: where it cannot be read, says what is no plan, or an option is not one of `pilot.py`.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"--plan {file} cannot be read ({reason}); give a TOML file.") from None
    try:
        return make_plan(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"--plan {file} is no plan ({error!r}); see experiments/study.toml for one.") from None


def make_plan(data: Mapping[str, Any]) -> Plan:
    """A plan from the content of its file.

    Raises:
      UserError: for what is no plan.
    """
    _refuse_others("the plan", data, PLAN_KEYS)
    regimes: Mapping[str, Mapping[str, Any]] = data["regimes"]
    found = (run for cell in data["cells"] for run in _runs_of(cell, data["common"], regimes))
    runs = tuple(sorted(found, key=lambda run: (list(regimes).index(run.regime), run.settings.seed)))
    names = [run.name for run in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"the plan has the run {twice} twice; give cells different names.")
    gate = tuple(data["gate"])
    if len(gate) > MOST_ARMS:
        raise UserError(f"the plan names {len(gate)} cells for the gate; it takes {MOST_ARMS} at most.")
    plan = Plan(data["title"], gate, tuple(regimes), runs)
    for name in gate:
        theirs = [regime for regime in regimes if name in plan.cells(regime)]
        if not theirs:
            raise UserError(f"the plan's gate needs the cell {name}, which is not planned; add it.")
        for regime in theirs:
            for needed in (name + SHUFFLED, CONTINUED):
                if needed not in plan.cells(regime):
                    raise UserError(
                        f"the plan's gate needs the cell {needed} beside {name} in the regime {regime}; add it."
                    )
    return plan


def _runs_of(
    cell: Mapping[str, Any], common: Mapping[str, Any], regimes: Mapping[str, Mapping[str, Any]]
) -> Iterator[PlannedRun]:
    name = cell["name"]
    _refuse_others(f"the cell {name}", cell, CELL_KEYS)
    for regime in cell["regimes"]:
        if regime not in regimes:
            raise UserError(f"the cell {name} is in the regime {regime!r}, which the plan lacks; use one it has.")
        for control in (False, True) if cell.get("shuffled") else (False,):
            options = {**common, **regimes[regime], **cell.get("options", {}), "arm": cell["arm"]}
            if control:
                options["shuffle_signal"] = 1
            for seed in range(cell["seeds"]):
                (settings,) = parse_runs(_words({**options, "seed": seed}))
                yield PlannedRun(regime, name + SHUFFLED if control else name, settings)


def _words(options: Mapping[str, Any]) -> list[str]:
    texts = {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in options.items()}
    return [word for name, text in texts.items() for word in (f"--{name}", text)]


def _refuse_others(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in known]:
        raise UserError(f"{what} has {unknown[0]!r}, which says nothing here; use {', '.join(known)}.")
