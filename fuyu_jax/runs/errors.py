"""What a person did wrong, told in one sentence."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """Bad input. The message is one sentence that names the value and says what to do; it needs no traceback."""

    status = EXIT_BAD_INPUT


class RunStopped(UserError):
    """A run that cannot go on, though nothing was wrong with its input; told as briefly."""

    status = EXIT_FAILED


def run_main(main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Runs a script's `main` and turns how it ended into an exit status.

    Args:
      main: takes the command line without the script's name.
      argv: the command line; `sys.argv[1:]` when None.

    Returns:
      0, or the status of a `UserError` (its sentence goes to stderr), 2 for bad input; or 130 after Ctrl-C. Other
      exceptions pass through.
    """
    try:
        main(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("interrupted; a run folder that was begun keeps what was finished", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def run_script(module: str) -> NoReturn:
    """Runs a module's `main` with the command line and ends the process with its status.

    The module is imported only here, so that Ctrl-C in the seconds of its import is answered like any other. After
    Ctrl-C the process ends at once: tearing the runtime down in the middle of a compilation can crash it.
    """
    status = run_main(lambda argv: importlib.import_module(module).main(argv))
    if status == EXIT_INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
