"""Numbers as plain text, for tables that are shown in Markdown, in HTML and on a terminal."""

from __future__ import annotations

from typing import Any


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


def between(low: float | None, high: float | None) -> str:
    """An interval of differences in percentage points, or nothing."""
    return "" if low is None or high is None else f"{points(low)} to {points(high)}"


def number(value: Any) -> str:
    """A number with four significant digits, whole numbers in full; text as it is, and nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
