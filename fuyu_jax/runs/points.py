"""How far a run is, saved as it trains: the points that it can be resumed from.

All that comes after a point follows from the settings and from what the point holds, so a run that goes on from one
writes the same bytes as a run that never stopped. What a stopped run did after its newest point is undone first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import jax
import optax
from flax import nnx

from fuyu_jax.evaluate.baselines import BASELINE
from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.learn.training import RULE, TrainingPoint, TrainState
from fuyu_jax.policy import Params
from fuyu_jax.runs.checkpoints import CheckpointSeries, Metadata, load_checkpoint
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.policies import PolicyFolder
from fuyu_jax.runs.recorder import RecorderState
from fuyu_jax.runs.settings import PLACES, PilotSettings
from fuyu_jax.runs.shared_bc import Recipe, lasting

Stage = Literal["copying", "updating"]
BASELINES = "baselines"  # measured before any phase


@dataclass
class Measured:
    """What was measured so far.

    Attributes:
      phases: in order; the first stands for the baselines.
      outcomes: of each.
      pass_at_8: of phases, by split.
    """

    phases: list[str] = field(default_factory=list)
    outcomes: list[Outcomes] = field(default_factory=list)
    pass_at_8: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, phase: str, outcomes: Outcomes) -> None:
        """Takes in what one phase came to."""
        self.phases.append(phase)
        self.outcomes.append(outcomes)

    def take_back(self, outcomes: Outcomes, point: RunPoint) -> None:
        """Holds again what was measured at a point, out of the outcomes of a run that may have gone further.

        Raises:
          UserError: where they lack a phase.
        """
        self.pass_at_8 = {phase: dict(rates) for phase, rates in point.pass_at_8.items()}
        for phase in point.measured:
            rows = outcomes.take(outcomes.arm == BASELINE if phase == BASELINES else outcomes.phase == phase)
            if not len(rows):
                raise UserError(f"outcomes.csv has lost the phase {phase}; copy the run again, or begin a new one.")
            self.add(phase, rows)


class RunPoint(NamedTuple):
    """A place that a run can go on from.

    Attributes:
      stage: which training this is a point of.
      training: the point of it.
      measured, pass_at_8: as in `Measured`.
      record: what the recorder knew.
      positions: where each source of tasks stood, by its name.
    """

    stage: Stage
    training: TrainingPoint
    measured: tuple[str, ...]
    pass_at_8: Mapping[str, Mapping[str, float]]
    record: RecorderState
    positions: Mapping[str, Mapping[str, int]]

    def to_json(self) -> Metadata:
        """All but the training state, as JSON data."""
        return {
            "stage": self.stage,
            "done": self.training.done,
            "parts": self.training.parts,
            "measured": list(self.measured),
            "pass_at_8": {phase: dict(rates) for phase, rates in self.pass_at_8.items()},
            "record": self.record.to_json(),
            "positions": {name: dict(position) for name, position in self.positions.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], state: TrainState) -> RunPoint:
        """The point that `to_json` described, with its training state."""
        return cls(
            stage=cast(Stage, data["stage"]),
            training=TrainingPoint(state, data["done"], data["parts"]),
            measured=tuple(data["measured"]),
            pass_at_8=data["pass_at_8"],
            record=RecorderState.from_json(data["record"]),
            positions=data["positions"],
        )


@dataclass(frozen=True)
class Points:
    """The saved points of one run, the newest few of them.

    Attributes:
      series: where they are.
      params: the run's parameters before any training, whose frozen part every point shares.
      bc_updates: updates of copying, after which those of the decision update are counted.
      made_by: what decides the run; a point that was made by anything else is refused.
      here: code, packages and devices, which may change while a run rests.
      keep: how many are kept; a negative number keeps all.
    """

    series: CheckpointSeries
    params: Params
    bc_updates: int
    made_by: Metadata
    here: Metadata
    keep: int

    @classmethod
    def of_run(cls, policies: PolicyFolder, settings: PilotSettings, params: Params, recipe: Recipe) -> Points:
        """The points of a run that copies by a recipe, beside its policies."""
        decisive = {name: value for name, value in settings.to_dict().items() if name not in PLACES}
        made_by = {**lasting(recipe), "settings": decisive}
        here = {name: recipe[name] for name in recipe.keys() - made_by.keys()}
        series = CheckpointSeries(policies.training)
        return cls(series, params, settings.bc_updates, made_by, here, settings.keep)

    def step(self, point: RunPoint) -> int:
        """A point's number, which rises with every update and every phase that is measured."""
        before = self.bc_updates + 1 if point.stage == "updating" else 0
        return before + point.training.done + len(point.measured)

    def save(self, point: RunPoint) -> None:
        """Saves a point, and then removes the oldest ones.

        Raises:
          UserError: where it cannot be written.
        """
        about = {**self.made_by, "here": self.here, "point": point.to_json()}
        self.series.save(
            self.step(point), _Arrays(point.training.state.params.trained, point.training.state.opt), about
        )
        self.series.prune(self.keep)

    def newest(self, say: Callable[[str], object]) -> tuple[RunPoint, bool] | None:
        """The newest point that is whole, and whether it was made with what is `here`; None where none was saved.

        Later points are removed: they are damaged, and the run comes by again.

        Args:
          say: called with a sentence for each damaged point.

        Raises:
          UserError: where a whole one was made by other settings or another model, or all are damaged.
        """
        restored = self.series.restore(self._like, say, self.made_by)
        if restored is None:
            return None
        self.series.remove_after(restored.metadata["step"])
        state = TrainState(self.params._replace(trained=restored.tree.trained), restored.tree.opt)
        return RunPoint.from_json(restored.metadata["point"], state), restored.metadata["here"] == self.here

    def check_newest(self) -> None:
        """Reads the newest point back.

        Raises:
          DamagedCheckpoint: where it is damaged.
        """
        load_checkpoint(self.series.path(self.series.steps()[-1]), self._like)

    @property
    def _like(self) -> _Arrays:
        return _Arrays(self.params.trained, jax.eval_shape(RULE.init, self.params.trained))


class _Arrays(NamedTuple):
    """What is saved of a training state: all but the frozen parameters."""

    trained: nnx.State
    opt: optax.OptState
