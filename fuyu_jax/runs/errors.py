"""What a person did wrong, or what stopped a run, told in one sentence."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
BY_SIGNAL = 128  # what a shell adds to the number of the signal that ended a process
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


class UserError(Exception):
    """Bad input. The message is one sentence that names the value and says what to do; it needs no traceback."""

    status = EXIT_BAD_INPUT


class RunStopped(UserError):
    """A run that cannot go on, though nothing was wrong with its input; told as briefly."""

    status = EXIT_FAILED


class Interrupted(KeyboardInterrupt):
    """A signal that asks a run to stop.

    Attributes:
      number: of the signal.
    """

    def __init__(self, number: int, text: str = "interrupted; what was finished is kept") -> None:
        """Stopped by a signal; `text` says what the person can do now."""
        super().__init__(text)
        self.number = number


def run_main(main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Runs a script's `main` and turns how it ended into an exit status.

    Args:
      main: takes the command line without the script's name.
      argv: the command line; `sys.argv[1:]` when None.

    Returns:
      0, or the status of a `UserError` (its sentence goes to stderr), 2 for bad input, for a folder that cannot be
      written and for a device that is not here; or 130 after Ctrl-C, 143 after SIGTERM. Other exceptions pass through.
    """
    try:
        main(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        return _told(error, error.status)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        sentence = (
            f"{error.filename or 'a file'} cannot be written ({error.strerror}); make room, or use another folder."
        )
        return _told(sentence, EXIT_BAD_INPUT)
    except (RuntimeError, AssertionError):  # jax says either of a device that is missing
        if _has_devices():
            raise
        wanted = os.environ["JAX_PLATFORMS"]
        return _told(f"JAX_PLATFORMS is {wanted!r}, but jax finds no such device here; use cpu.", EXIT_BAD_INPUT)
    except Interrupted as error:
        print(error, file=sys.stderr)
        return BY_SIGNAL + error.number
    except KeyboardInterrupt:
        print("interrupted; a folder that was begun keeps what was finished", file=sys.stderr)
        return BY_SIGNAL + signal.SIGINT
    return 0


def _has_devices() -> bool:
    """Whether jax finds the devices that JAX_PLATFORMS asks for; without that it takes what there is."""
    if not os.environ.get("JAX_PLATFORMS"):
        return True
    try:
        importlib.import_module("jax").devices()
    except (RuntimeError, AssertionError):
        return False
    return True


def _told(sentence: object, status: int) -> int:
    print(f"error: {' '.join(str(sentence).split())}", file=sys.stderr)
    return status


def run_script(module: str) -> NoReturn:
    """Runs a module's `main` with the command line and ends the process with its status.

    The module is imported only here, so that Ctrl-C in the seconds of its import is answered like any other. After
    a signal the process ends at once: tearing the runtime down in the middle of a compilation can crash it.
    """
    status = run_main(lambda argv: importlib.import_module(module).main(argv))
    if status > BY_SIGNAL:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
