"""One line that says how far long work is, how fast it goes, its loss and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 5.0


_QUIET = ContextVar("quiet", default=False)


@contextmanager
def silence(quiet: bool = True) -> Iterator[None]:
    """No progress is shown inside, where `quiet`."""
    token = _QUIET.set(quiet)
    try:
        yield
    finally:
        _QUIET.reset(token)


class Progress:
    """Progress of `total` steps: a bar on a terminal, else a plain line every few seconds and one at the end.

    Inside `silence` nothing is shown.

    Args:
      label: what is being done.
      total: steps in all; with 0 nothing is ever shown.
      stream: where it is shown; stderr when None.
      clock: seconds from an arbitrary moment, never going back.
      unit: of steps that are shown with a prefix, such as "B" for 2.1G of bytes; empty for steps that are counted.
    """

    def __init__(
        self,
        label: str,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "",
    ) -> None:
        """Starts the clock; nothing is shown yet."""
        total = 0 if _QUIET.get() else total
        self._label, self._total, self._clock = label, total, clock
        self._stream = sys.stderr if stream is None else stream
        self._done, self._shown_steps, self._values = 0, -1, ""
        self._start = self._shown = clock()
        self._bar: tqdm | None = None
        if self._stream.isatty() and total:
            self._bar = tqdm(total=total, desc=label, file=self._stream, unit=unit or "it", unit_scale=bool(unit))
        self._unit = unit

    def update(self, steps: int = 1, **values: float) -> None:
        """Counts finished steps and shows the latest values, such as `loss=0.52`."""
        self._done += steps
        self._values = "".join(f", {name} {value:.4g}" for name, value in values.items())
        if self._bar is not None:
            self._bar.set_postfix_str(self._values.removeprefix(", "), refresh=False)
            self._bar.update(steps)
        elif self._total and self._clock() - self._shown >= SECONDS_BETWEEN_LINES:
            self._show()

    def close(self) -> None:
        """Shows the last line, if it was not shown yet."""
        if self._bar is not None:
            self._bar.close()
        elif self._total and self._shown_steps != self._done:
            self._show()

    def __enter__(self) -> Self:
        """The progress itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes, whether the work ended or failed."""
        self.close()

    def _show(self) -> None:
        self._shown, self._shown_steps = self._clock(), self._done
        seconds = self._shown - self._start
        rate = self._done / seconds if seconds > 0 else 0.0
        if self._done >= self._total:
            when = f"{tqdm.format_interval(seconds)} in all"
        else:
            when = f"{tqdm.format_interval((self._total - self._done) / rate)} left" if rate else "time left unknown"
        count = tqdm.format_sizeof if self._unit else str
        speed = tqdm.format_sizeof(rate, self._unit) if self._unit else f"{rate:.3g}"
        print(
            f"{self._label}: {count(self._done)}/{count(self._total)}, {speed}/s{self._values}, {when}",
            file=self._stream,
            flush=True,
        )
