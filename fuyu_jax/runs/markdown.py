"""Reports and tables as Markdown text."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from fuyu_jax.runs.document import Bullets, Code, Document, Fold, Heading, Image, Part, Table, Text, pieces

# An underscore between letters or digits is plain text in Markdown; elsewhere it may begin emphasis.
_SPECIAL = re.compile(r"[\\`*<>\[\]|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def render(document: Document) -> str:
    """The report as Markdown."""
    texts = [f"# {escape(document.title)}", f"**{escape(document.answer)}**"]
    for section in document.sections:
        texts += [f"## {escape(section.title)}", parts_text(section.parts)]
    return "\n\n".join(texts) + "\n"


def parts_text(parts: Sequence[Part]) -> str:
    """Parts of a report, one after the other."""
    return "\n\n".join(map(_part, parts))


def escape(text: Any) -> str:
    """Text that a table cell shows as it is: Markdown's special characters are escaped, line breaks become spaces."""
    return _SPECIAL.sub(lambda match: "\\" + match[0], " ".join(str(text).split()))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """A Markdown table of cells that are Markdown; all but the first `text_columns` are aligned to the right."""
    if not rows:
        return "*No data.*"
    align = ["left"] * text_columns + ["right"] * (len(header) - text_columns)
    return tabulate(rows, header, tablefmt="pipe", disable_numparse=True, colalign=align)


def table_of(shown: Table) -> str:
    """A table of plain text as Markdown, with its note."""
    text = table([*map(escape, shown.header)], [[*map(escape, row)] for row in shown.rows], shown.text_columns)
    return f"{text}\n\n{_words(shown.note)}" if shown.note else text


def _part(part: Part) -> str:
    match part:
        case Table():
            return table_of(part)
        case Text():
            return _words(part.words)
        case Bullets():
            return "\n".join(f"- {_words(item)}" for item in part.items)
        case Code():
            fence = "`" * (1 + max(2, *map(len, re.findall("`+", part.text)), 0))
            return f"{fence}\n{part.text}\n{fence}"
        case Heading():
            return f"### {escape(part.title)}"
        case Image():
            return f"![{escape(part.title)}]({part.path})"
        case Fold():
            return f"<details><summary>{html.escape(part.summary)}</summary>\n\n{table_of(part.table)}\n\n</details>"


def _words(words: str) -> str:
    return "".join(f"`{piece}`" if is_code else _spaced(piece) for is_code, piece in pieces(words))


def _spaced(piece: str) -> str:
    """Escaped text with the blanks at its ends, which part it from code beside it."""
    before, after = (" " if end.isspace() else "" for end in (piece[0], piece[-1]))
    return before + escape(piece) + after if piece.strip() else " "
