"""Saves the points that a run comes by, and takes a stopped run back to the newest of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from fuyu_jax.evaluate.outcomes import Outcomes
from fuyu_jax.learn.demos import TaskSource
from fuyu_jax.learn.training import TrainingPoint
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.interrupts import Interrupts
from fuyu_jax.runs.points import Measured, Points, RunPoint, Stage
from fuyu_jax.runs.policies import PolicyFolder
from fuyu_jax.runs.recorder import TRAIN_LOG, Recorder, RecorderState


class Saver:
    """Decides which of the points that training comes by are saved.

    They are the first after something was measured, the last before that, every one that comes some seconds after the
    one before, and the one to go on from when a signal asks to stop.

    Attributes:
      measured: what was measured so far; the run adds to it.
      stage: which training is going on; sources: where it takes tasks from, by name. The run sets both.
      begin: the point that the run goes on from, if it does.
      unchanged: whether code, packages and devices are still those of that point.
    """

    def __init__(
        self,
        points: Points,
        folder: RunFolder,
        policies: PolicyFolder,
        record: Recorder,
        every: float,
        interrupts: Interrupts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """For a new run, until `go_on` is called.

        Args:
          points: where they are saved.
          folder: the run's.
          policies: the run's.
          record: what writes its train log.
          every: seconds.
          interrupts: tells of signals.
          clock: seconds from an arbitrary moment, never going back.
        """
        self.measured = Measured()
        self.stage: Stage = "copying"
        self.sources: dict[str, TaskSource] = {}
        self.begin: RunPoint | None = None
        self.unchanged = True
        self._points, self._folder, self._policies, self._record = points, folder, policies, record
        self._every, self._interrupts, self._clock = every, interrupts, clock
        self._latest: RunPoint | None = None
        self._saved = _name(None)
        self._saved_at = clock()

    def go_on(self) -> None:
        """Takes a run that stopped back to its newest point: whatever it did after that is undone.

        Raises:
          UserError: where the run's files are damaged, or its points are of another run.
        """
        if found := self._points.newest(self._folder.say):
            self.begin, self.unchanged = found
        elif self._policies.phases() or self._folder.size(TRAIN_LOG):  # training begins with a point
            raise UserError(
                f"{self._policies.training} has no point to go on from; say with --checkpoint_dir where the points of "
                f"{self._folder.path} are, or begin a new run."
            )
        self._saved = _name(self.begin)
        self._record.go_back(self.begin.record if self.begin else RecorderState({}, (), 0))
        if self.begin:
            try:
                outcomes = Outcomes.read(self._folder.path / "outcomes.csv")
            except (OSError, ValueError, KeyError) as error:
                raise UserError(f"{self._folder.path} cannot go on: outcomes.csv cannot be read ({error}).") from None
            self.measured.take_back(outcomes, self.begin)
        self._policies.keep_only(self.measured.phases)
        where = f"update {self.begin.training.done} of {self.begin.stage}" if self.begin else "the beginning"
        self._folder.log(f"goes on from {where}; measured so far: {', '.join(self.measured.phases) or 'nothing'}")
        if not self.unchanged:
            self._folder.say("code, packages or devices have changed since the run stopped: numbers may differ")

    def at_point(self, training: TrainingPoint) -> None:
        """Remembers a point, and saves it if it is time.

        Raises:
          Interrupted: after saving it, where a signal asked to stop.
          UserError: where it cannot be written.
        """
        positions = {name: source.position for name, source in self.sources.items()}
        measured, rates = tuple(self.measured.phases), dict(self.measured.pass_at_8)
        self._latest = RunPoint(self.stage, training, measured, rates, self._record.state, positions)
        first = self._saved[:2] != (self.stage, measured)
        if first or self._clock() - self._saved_at >= self._every:
            self.save()
        self.after_update()

    def after_update(self) -> None:
        """Stops, with the latest point saved, where a signal asked to.

        Raises:
          Interrupted: then.
        """
        if self._interrupts.asked is not None:
            self.save()
            self._interrupts.stop_if_asked()

    def save(self) -> None:
        """Saves the latest point, if it is not saved yet.

        Raises:
          UserError: where it cannot be written.
        """
        if self._latest is not None and _name(self._latest) != self._saved:
            self._points.save(self._latest)
            self._saved, self._saved_at = _name(self._latest), self._clock()

    def check(self) -> None:
        """Reads the newest point back.

        Raises:
          DamagedCheckpoint: where it is damaged.
        """
        self._points.check_newest()


def _name(point: RunPoint | None) -> tuple[str, tuple[str, ...], int]:
    """What tells a point from all others of its run; the point itself would hold its arrays in memory."""
    return (point.stage, point.measured, point.training.done) if point else ("", (), 0)
