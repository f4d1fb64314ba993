"""The folder of one run: never of two, written by one process at a time, with files that are whole at any moment."""

from __future__ import annotations

import datetime
import fcntl
import json
import math
import os
import re
import shutil
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np

from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.tables import Row, append_csv, named_errors, to_csv, write_atomically

LOG_NAME = "experiment_log.md"


@dataclass(frozen=True)
class RunFolder:
    """The folder that one run owns and writes to.

    Attributes:
      path: the folder, which exists.
    """

    path: Path
    _log: TextIO = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        """Who has no more use for the folder lets go of it."""
        weakref.finalize(self, self._log.close)

    @classmethod
    def create(cls, out: str | None, name: str, root: str | Path = "runs") -> RunFolder:
        """Makes the folder of a new run and claims it, so that two runs at the same moment never share one.

        Args:
          out: the folder, new or empty; None takes the next number under `root`, as in `runs/0003_NAME`.
          name: the rest of a numbered folder's name, and the title of the run's log.
          root: where numbered folders are.

        Raises:
          UserError: where the folder is in use or cannot be written.
        """
        try:
            path = _next_numbered(Path(root), name) if out is None else _claim_given(Path(out))
            # Creating the log exclusively is the claim: of two runs given the same folder only one can do it.
            log = _locked(path / LOG_NAME, "x")
            print(f"# Experiment log: {name}\n", file=log, flush=True)
        except FileExistsError:
            raise _in_use(out) from None
        except NotADirectoryError:
            raise UserError(f"{out} is a file; give --out a new or an empty folder.") from None
        except (OSError, ValueError) as error:
            where = root if out is None else out
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"the folder {where} cannot be written ({reason}); give another --out.") from None
        return cls(path, log)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Takes over the folder of a run whose process has ended; what that left half written is removed.

        Raises:
          UserError: where the process still runs, or the folder is no run's or cannot be written.
        """
        try:
            log = _locked(path / LOG_NAME, "r+")
        except BlockingIOError:
            raise UserError(f"the run in {path} is still going on; let it end, or stop it first.") from None
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{path} is no run: it has no {LOG_NAME}; give the folder of a run.") from None
        except OSError as error:
            raise UserError(f"the folder {path} cannot be written ({error.strerror}); copy it elsewhere.") from None
        remove_drafts(path)
        return cls(path, log)

    def close(self) -> None:
        """Lets another process have the folder."""
        self._log.close()

    def give_up(self) -> None:
        """Removes the folder of a run that cannot begin, in which there is the log alone."""
        self.close()
        (self.path / LOG_NAME).unlink()
        self.path.rmdir()

    @staticmethod
    def check_free(out: str | None) -> None:
        """Refuses a folder in use as `create` does, but makes and claims nothing: for before minutes of loading.

        Raises:
          UserError: where the folder is in use.
        """
        if out is not None and Path(out).is_dir() and any(Path(out).iterdir()):
            raise _in_use(out)

    def write_json(self, name: str, data: Any) -> None:
        """Writes plain data and numpy numbers as JSON, with null where a number is NaN or infinite."""
        text = json.dumps(_plain(data), indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(self.path / name, (text + "\n").encode())

    def write_json_lines(self, name: str, records: Iterable[Any]) -> None:
        """Writes records of plain data as JSON, one a line, with null where a number is NaN or infinite."""
        lines = [json.dumps(_plain(record), allow_nan=False, ensure_ascii=False) + "\n" for record in records]
        write_atomically(self.path / name, "".join(lines).encode())

    def write_csv(self, name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Writes a table in place of what was there."""
        write_atomically(self.path / name, to_csv(columns, rows).encode())

    def append_csv(self, name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Adds rows to a table, which is made where it is missing."""
        append_csv(self.path / name, columns, rows)

    def size(self, name: str) -> int:
        """The bytes of a file; 0 where there is none."""
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def cut(self, name: str, size: int) -> None:
        """Takes a file back to its first `size` bytes; with 0 there is none.

        Raises:
          UserError: where it has fewer.
        """
        path = self.path / name
        if self.size(name) < size:
            raise UserError(f"{path} has lost its end; copy the run again, or begin a new one.")
        if size == 0:
            path.unlink(missing_ok=True)
        elif self.size(name) > size:
            write_atomically(path, path.read_bytes()[:size])

    def log(self, message: str) -> None:
        """Adds a dated line (UTC) to the experiment log."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        with named_errors(self.path / LOG_NAME):
            self._log.seek(0, os.SEEK_END)
            print(f"- {now} {' '.join(message.split())}", file=self._log, flush=True)

    def say(self, message: str) -> None:
        """Logs a message and shows it at once."""
        print(message, file=sys.stderr, flush=True)
        self.log(message)


def remove_drafts(folder: Path) -> None:
    """Removes what a process that is gone left half written: names that begin with a dot and end in `.tmp`."""
    for path in folder.glob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _locked(log: Path, mode: Literal["x", "r+"]) -> TextIO:
    """A run's log, opened and locked for as long as it is open: the system lets go of it when the process ends.

    Raises:
      BlockingIOError: where another process has it.
    """
    file = log.open(mode, encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError:
        pass  # a file system without locks: a run there is better than none
    return file


def run_number(folder: Path) -> int | None:
    """The number that a run folder's name begins with, or None for another name."""
    match = re.match(r"(\d+)_", folder.name)
    return int(match[1]) if match else None


def _in_use(out: str | None) -> UserError:
    return UserError(f"the folder {out} is in use; give --out a new or an empty folder.")


def _next_numbered(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    # Numbers are compared as numbers: run 10000 comes after run 9999, whatever the order of their names.
    taken = [run_number(folder) for folder in root.iterdir()]
    number = 1 + max((value for value in taken if value is not None), default=0)
    while True:
        path = root / f"{number:04d}_{name}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _claim_given(path: Path) -> Path:
    """A folder that was asked for, made where it is missing. Raises FileExistsError where it is in use."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise FileExistsError
    return path


def _plain(data: Any) -> Any:
    """Data made of what JSON has: no numpy, no tuples, no NaN."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, np.ndarray):
        return _plain(data.tolist())
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, np.generic):
        return _plain(data.item())
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return str(data) if isinstance(data, Path) else data
