"""Numbers and tables as Markdown text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

Row = Mapping[str, Any]

# An underscore between letters or digits is plain text in Markdown; elsewhere it may begin emphasis.
_SPECIAL = re.compile(r"[\\`*<>\[\]|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escape(text: Any) -> str:
    """Text that a table cell shows as it is: Markdown's special characters are escaped, line breaks become spaces."""
    return _SPECIAL.sub(lambda match: "\\" + match[0], " ".join(str(text).split()))


def percent(share: float | None) -> str:
    """A share as percent with one decimal, or nothing."""
    return "" if share is None else f"{100 * share:.1f} %"


def points(difference: float | None) -> str:
    """A difference of shares in percentage points, with its sign."""
    return "" if difference is None else f"{100 * difference:+.1f}"


def interval(share: float | None, low: float | None, high: float | None) -> str:
    """A share with its interval, both in percent."""
    if share is None or low is None or high is None:
        return percent(share)
    return f"{100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def number(value: Any) -> str:
    """A number with four significant digits, whole numbers in full, or nothing; text is escaped."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """A Markdown table of finished cells; all but the first `text_columns` are aligned to the right."""
    if not rows:
        return "*No data.*"
    align = ["left"] * text_columns + ["right"] * (len(header) - text_columns)
    return tabulate(rows, header, tablefmt="pipe", disable_numparse=True, colalign=align)


def data_table(rows: Sequence[Row], most: int = 60) -> str:
    """Plain rows as a table; shares stay numbers. Of more than `most` rows, evenly spaced ones are shown."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    step = -(-len(rows) // most) if rows else 1
    cells = [[number(row.get(column)) for column in columns] for row in rows[::step]]
    texts = sum(any(isinstance(row.get(column), str) for row in rows) for column in columns)
    note = f"\n\n*One row in {step} of {len(rows)}.*" if step > 1 else ""
    return table([escape(column) for column in columns], cells, max(1, texts)) + note
