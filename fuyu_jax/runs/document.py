"""A report as plain data, said once and written twice: `markdown.render` and `page.render` make files of it.

Words are plain text, except that what stands between backticks is code. Cells, titles and code are plain text
altogether. Neither writer trusts any of it: what looks like markup is shown as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of finished cells; all but the first `text_columns` hold numbers."""

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    note: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph of words."""

    kind: ClassVar[str] = "text"
    words: str


@dataclass(frozen=True)
class Bullets:
    """A list of words."""

    kind: ClassVar[str] = "bullets"
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """A block of code."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Heading:
    """A title within a section."""

    kind: ClassVar[str] = "heading"
    title: str


@dataclass(frozen=True)
class Image:
    """A chart in a PNG file, by its path from the report's folder."""

    kind: ClassVar[str] = "image"
    path: str
    title: str


@dataclass(frozen=True)
class Fold:
    """A table that is folded away behind a summary."""

    kind: ClassVar[str] = "fold"
    summary: str
    table: Table


Part = Table | Text | Bullets | Code | Heading | Image | Fold


@dataclass(frozen=True)
class Section:
    """A titled part of a report."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Document:
    """A report: its title, what it found in one paragraph, and its sections."""

    title: str
    answer: str
    sections: Sequence[Section]


def code(value: Any) -> str:
    """A value as code within words; backticks in it become quotation marks."""
    return "`" + " ".join(str(value).replace("`", "'").split()) + "`"


def pieces(words: str) -> list[tuple[bool, str]]:
    """Words in pieces: (whether it is code, its text)."""
    return [(bool(number % 2), piece) for number, piece in enumerate(words.split("`")) if piece]
