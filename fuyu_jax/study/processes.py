"""Commands that run side by side, each on processor cores of its own.

The embedded model is too small to keep several cores busy: two runs on a core each are done sooner than one after the
other on both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from fuyu_jax.runs.errors import Interrupted

LOOK_SECONDS = 0.2  # between two looks at what is running


@dataclass(frozen=True)
class Job:
    """A command.

    Attributes:
      name: of which the caller knows it.
      words: the command.
      environment: variables beside those of this process.
      alone_among: of jobs with the same value one runs at a time.
      said: the file that takes what it prints; None prints it here.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    alone_among: Hashable
    said: Path | None = None


class _Running(NamedTuple):
    job: Job
    process: subprocess.Popen[bytes]
    cores: frozenset[int]


def run_side_by_side(
    jobs: Sequence[Job], at_once: int, at_begin: Callable[[Job], None], at_end: Callable[[Job, int], None]
) -> None:
    """Runs jobs in order as far as `alone_among` lets them, `at_once` at a time.

    Args:
      jobs: what to run.
      at_once: how many at most; with more than one, each gets its part of this process's cores.
      at_begin: told of each job.
      at_end: told of each job and its exit status.

    Raises:
      Interrupted: at SIGINT or SIGTERM, which the running jobs are sent and waited for.
    """
    waiting, running, shares = list(jobs), list[_Running](), cores_of_each(at_once)
    with _signals_raise():
        try:
            while waiting or running:
                busy = {one.job.alone_among for one in running}
                job = next((job for job in waiting if job.alone_among not in busy), None)
                if job is not None and len(running) < at_once:
                    waiting.remove(job)
                    at_begin(job)
                    taken = [one.cores for one in running]
                    running.append(
                        _begin(job, next(share for share in shares if taken.count(share) < shares.count(share)))
                    )
                    continue
                ended = next((one for one in running if one.process.poll() is not None), None)
                if ended is None:
                    time.sleep(LOOK_SECONDS)
                    continue
                running.remove(ended)
                at_end(ended.job, ended.process.returncode)
        except Interrupted as stop:
            for one in running:
                one.process.send_signal(stop.number)
            raise
        finally:
            for one in running:
                one.process.wait()


def cores_of_each(at_once: int) -> list[frozenset[int]]:
    """The cores that each of some jobs gets: all of them evenly; where there are fewer than jobs, one each in turn."""
    if not hasattr(os, "sched_getaffinity"):
        return [frozenset()] * at_once  # this system hands out none
    cores = sorted(os.sched_getaffinity(0))
    return [frozenset(cores[number::at_once] or [cores[number % len(cores)]]) for number in range(at_once)]


def _begin(job: Job, cores: frozenset[int]) -> _Running:
    with contextlib.ExitStack() as stack:
        if job.said is not None:
            job.said.parent.mkdir(parents=True, exist_ok=True)
        said = None if job.said is None else stack.enter_context(job.said.open("ab"))
        if cores:  # a process begins with its parent's
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores)
        # In a session of its own, so that a signal comes to it once, from here.
        process = subprocess.Popen(
            job.words, env={**os.environ, **job.environment}, stdout=said, stderr=said, start_new_session=True
        )
    return _Running(job, process, cores)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM raise `Interrupted`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
