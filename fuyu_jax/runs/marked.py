"""Parts of a README that are made by a command: the lines between two marks."""

from __future__ import annotations

import os
from pathlib import Path

from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.tables import write_atomically


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a part of this name."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def with_part(readme: Path, name: str, part: str) -> str:
    """The README's text with this part between its marks.

    Raises:
      UserError: where the README cannot be read or replaced, or lacks the marks.
    """
    begin_mark, end_mark = marks(name)
    try:
        text = readme.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"--readme {readme} cannot be read ({why}); give a Markdown file.") from error
    begin = text.find(begin_mark)
    end = text.find(end_mark, begin)
    if begin < 0 or end < 0:
        raise UserError(f"--readme {readme} lacks {begin_mark} with {end_mark} after it; add both, a line each.")
    if not os.access(readme.resolve().parent, os.W_OK):
        raise UserError(f"--readme {readme} cannot be replaced in its folder; give a file that can.")
    return f"{text[:begin]}{begin_mark}\n{part}\n{text[end:]}"


def write_file(option: str, path: Path, content: str) -> None:
    """Writes a file that an option names, whole or not at all.

    Raises:
      UserError: where it cannot be written.
    """
    try:
        write_atomically(path, content.encode())
    except OSError as error:
        raise UserError(f"{option}: {path} cannot be written ({error.strerror}); give another place.") from error
