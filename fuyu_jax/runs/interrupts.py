"""Signals that ask a run to stop: the first is answered where it does no harm, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from fuyu_jax.runs.errors import BY_SIGNAL, Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Answers SIGINT and SIGTERM inside its `with` block, in the main thread; elsewhere it does nothing.

    Python runs a handler only between two of its own instructions, which can be a minute of compilation away. So a
    thread is told of signals as well, and it is the thread that ends the process at the second one.

    Attributes:
      asked: the signal that asked to stop, or None.
    """

    def __init__(self) -> None:
        """Nothing is answered yet."""
        self.asked: int | None = None
        self._at_once = False
        self._before: dict[int, Any] = {}
        self._pipe: tuple[socket.socket, socket.socket] | None = None
        self._wakeup_before = -1

    def stop_if_asked(self) -> None:
        """Stops here if a signal asked for it.

        Raises:
          Interrupted: then.
        """
        if self.asked is not None:
            raise Interrupted(self.asked)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, a signal stops the work wherever it is: for work that leaves nothing half done.

        Raises:
          Interrupted: at a signal, or at the beginning where one came before.
        """
        before, self._at_once = self._at_once, True
        try:
            self.stop_if_asked()
            yield
        finally:
            self._at_once = before

    def __enter__(self) -> Self:
        """Begins to answer."""
        if threading.current_thread() is threading.main_thread():
            read, write = self._pipe = socket.socketpair()
            write.setblocking(False)
            self._wakeup_before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._answer) for number in SIGNALS}
            threading.Thread(target=_watch, args=(read,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answers no longer."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            self._pipe[1].close()  # which ends the thread
        self._before, self._pipe = {}, None

    def _answer(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        if self._at_once:
            raise Interrupted(number)


def _watch(read: socket.socket) -> None:
    """Reads the numbers of signals as they come, until the other end is closed."""
    with read:
        asked = 0
        while numbers := read.recv(1):
            if numbers[0] not in SIGNALS:
                continue
            asked += 1
            if asked > 1:
                os._exit(BY_SIGNAL + numbers[0])
            print("stopping as soon as it does no harm; once more stops at once", file=sys.stderr, flush=True)
