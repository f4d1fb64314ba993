"""Runs of several arms and seeds put together: what is one arm, and which runs are its controls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuyu_jax.evaluate.metrics import COPIED_PHASE
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.gate import Panel, Study
from fuyu_jax.gate.decision import CONTINUED, SHUFFLED
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.reading import FinishedRun
from fuyu_jax.runs.settings import COPYING_ARMS, sees_oracle_labels

SIGNAL = "shuffle_signal"


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only.

    Attributes:
      name: the arm, with the settings that tell it apart where an arm was run in several ways.
      shuffled: whether the arm's own signal was permuted.
      runs: the runs, by seed.
    """

    name: str
    shuffled: bool
    runs: tuple[FinishedRun, ...]

    @property
    def arm(self) -> str:
        """The arm as `config.json` names it."""
        return self.runs[0].arm

    @property
    def title(self) -> str:
        """The name, with a word where this is the shuffled control."""
        return f"{self.name}, {SHUFFLED}" if self.shuffled else self.name

    @property
    def phase(self) -> str | None:
        """The phase after the last round, or None where there is no round."""
        return self.runs[0].last_phase

    @property
    def sees_oracle(self) -> bool:
        """Whether the runs learned from the oracle in more than the copied demonstrations."""
        try:
            return sees_oracle_labels(self.runs[0].config)
        except KeyError as error:
            raise UserError(
                f"{self.runs[0].folder}: config.json has no {error}; give the folder of a run that ended."
            ) from None

    def outcomes(self, phase: str | None) -> Outcomes:
        """The outcomes of one phase in the learned mode, all seeds."""
        return Outcomes.concatenate([run.policy.select(phase=phase) for run in self.runs])


def group_runs(runs: Sequence[FinishedRun]) -> list[Group]:
    """The runs by what they did, in the order of their names.

    Raises:
      UserError: where two runs share everything and their seed, or end after different rounds.
    """
    parts: dict[tuple[str, bool], list[FinishedRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        key = json.dumps(run.settings(("seed", SIGNAL)), sort_keys=True)
        parts.setdefault((key, bool(run.config.get(SIGNAL, False))), []).append(run)
    for same in parts.values():
        for run, after in zip(same, same[1:], strict=False):
            if run.seed == after.seed:
                raise UserError(f"{run.folder} and {after.folder} are the same run; give each arm and seed once.")
            if run.last_phase != after.last_phase:
                raise UserError(
                    f"{after.folder} ends with {after.last_phase}, {run.folder} with {run.last_phase}; "
                    "give runs with as many rounds."
                )
    groups = [Group(_name(same[0], runs), shuffled, tuple(same)) for (_, shuffled), same in parts.items()]
    return sorted(groups, key=lambda group: (group.name, group.shuffled))


def is_candidate(group: Group) -> bool:
    """Whether the gate may be asked about a group: it has a decision update and is no control."""
    return not group.shuffled and group.arm not in COPYING_ARMS and group.phase is not None


def make_study(name: str, groups: Sequence[Group]) -> Study:
    """The arm of this name with its controls, as far as they are among the groups; what is amiss becomes a sentence."""
    arm = next((group for group in groups if group.name == name and not group.shuffled), None)
    if arm is None:
        return Study(None, None, None, (f"There is no run of the arm {name}.",))
    problems: list[str] = []
    shuffled = next((group for group in groups if group.name == name and group.shuffled), None)
    if shuffled is None:
        problems.append(f"There is no run of {name} with --{SIGNAL} 1, the control {SHUFFLED}.")
    continued = [group for group in groups if group.arm == CONTINUED and not group.shuffled]
    fitting = [group for group in continued if _same_start(arm, group)]
    if not continued:
        problems.append(f"There is no run of the control {CONTINUED}.")
    elif not fitting:
        problems.append(f"No run of {CONTINUED} started from the same copied policies as {name}.")
    elif len(fitting) > 1:
        named = " and ".join(group.name for group in fitting)
        problems.append(f"Both {named} could be the control; give the one with as many updates as {name}.")
    control = fitting[0] if len(fitting) == 1 else None
    panels = [_panel(group, problems) for group in (arm, control, shuffled)]
    return Study(panels[0], panels[1], panels[2], tuple(problems))


def _panel(group: Group | None, problems: list[str]) -> Panel | None:
    if group is None:
        return None
    if group.phase is None:
        problems.append(f"{group.title} has no decision update.")
        return None
    try:
        return Panel.of(group.outcomes(group.phase))
    except ValueError as error:
        problems.append(f"{group.title} can't be paired: {error}.")
        return None


def _same_start(arm: Group, control: Group) -> bool:
    """Whether the copied policies of both did the same on every task, in the seeds that both have."""
    theirs = {run.seed: run for run in control.runs}
    return all(_copied(run) == _copied(theirs[run.seed]) for run in arm.runs if run.seed in theirs)


def _copied(run: FinishedRun) -> list[tuple[Any, ...]]:
    rows = run.policy.select(phase=COPIED_PHASE)
    rows = rows.take(np.lexsort((rows.k, rows.task, rows.split)))
    columns = (rows.split, rows.k, rows.task, rows.start_solved, rows.solved, rows.edits)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _name(run: FinishedRun, runs: Sequence[FinishedRun]) -> str:
    """The arm, with those of its settings that are not the same in all runs of the arm."""
    mine = run.settings(("seed", "arm", SIGNAL))
    others = [other.settings(("seed", "arm", SIGNAL)) for other in runs if other.arm == run.arm]
    apart = [name for name in mine if any(other.get(name) != mine[name] for other in others)]
    return " ".join([run.arm, *(f"{name}={_text(mine[name])}" for name in apart)])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)
