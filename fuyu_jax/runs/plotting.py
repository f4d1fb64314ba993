"""Bar and line charts drawn without a display: each one is a figure of its own that nothing else can see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

Row = Mapping[str, Any]

# Okabe and Ito's palette, told apart with any kind of colour vision; yellow comes last, it is faint on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")
MOST_MARKERS = 20  # a line of more points is drawn without markers
STYLE: Any = {
    "text.parse_math": False,  # a label with a dollar sign is a label
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Axis:
    """Which columns of the rows a chart draws, and what its axes say.

    Attributes:
      title: over the chart.
      x: the column along the horizontal axis.
      series: the column that decides the colour.
      y: the column of the height.
      ylabel: what the height is.
      xlabel: what the horizontal axis is.
      low, high: columns of the ends of its interval, where there is one.
      dash: the column that decides how a line is dashed, where there is one.
      share: whether heights are shares of one, shown as percent from 0 to 100.
      log: whether the vertical axis is logarithmic.
    """

    title: str
    x: str
    series: str
    y: str
    ylabel: str
    xlabel: str = ""
    low: str | None = None
    high: str | None = None
    dash: str | None = None
    share: bool = True
    log: bool = False


def bars(path: Path, axis: Axis, rows: Sequence[Row], reference: Row | None = None) -> None:
    """Bars grouped by `axis.x`, one colour a series, with interval bars.

    Args:
      path: the PNG file.
      axis: what is drawn.
      rows: the data; a height that is None or NaN leaves a gap, and no height at all an empty chart that says so.
      reference: labels and heights of dashed lines.
    """
    groups, series = _values(rows, axis.x), _values(rows, axis.series)
    with _figure(path, axis, wide=len(groups) * max(len(series), 1)) as axes:
        width = min(0.3, 0.8 / max(len(series), 1))
        for index, name in enumerate(series):
            mine = [row for row in rows if _name(row, axis.series) == name]
            left = [groups.index(_name(row, axis.x)) + (index - (len(series) - 1) / 2) * width for row in mine]
            heights = [_number(row.get(axis.y)) for row in mine]
            axes.bar(left, heights, width * 0.92, color=COLOURS[index % len(COLOURS)], label=name)
            for x, height, row in zip(left, heights, mine, strict=True):
                _interval(axes, axis, x, height, row)
                if math.isfinite(height) and len(groups) * len(series) <= 24:
                    text = f"{100 * height:.0f}" if axis.share else f"{height:.3g}"
                    top = _number(row.get(axis.high)) if axis.high else math.nan
                    axes.annotate(
                        text, (x, top if math.isfinite(top) else height), (0, 2), textcoords="offset points",
                        ha="center", fontsize=8,
                    )  # fmt: skip
        for index, (label, height) in enumerate((reference or {}).items()):
            if math.isfinite(_number(height)):
                axes.axhline(height, color="#555555", linestyle=DASHES[1 + index % 3], linewidth=1.2, label=label)
        axes.set_xticks(range(len(groups)), groups, rotation=20 if len(groups) > 3 else 0)
        axes.set_xlim(-0.6, max(len(groups), 1) - 0.4)


def lines(path: Path, axis: Axis, rows: Sequence[Row], marks: Sequence[tuple[float, str]] = ()) -> None:
    """A line a series over the number in `axis.x`, with interval bars.

    Args:
      path: the PNG file.
      axis: what is drawn.
      rows: the data, in the order of the line; a height that is None or NaN breaks the line.
      marks: positions and labels of vertical lines.
    """
    series, dashes = _values(rows, axis.series), _values(rows, axis.dash)
    with _figure(path, axis, wide=0) as axes:
        for index, name in enumerate(series):
            for dash, dashed in zip(DASHES * len(dashes), dashes, strict=False):
                mine = [row for row in rows if (_name(row, axis.series), _name(row, axis.dash)) == (name, dashed)]
                xs, ys = [_number(row.get(axis.x)) for row in mine], [_number(row.get(axis.y)) for row in mine]
                marker = MARKERS[index % len(MARKERS)] if len(mine) <= MOST_MARKERS else ""
                label = f"{name}, {dashed}" if axis.dash else name
                axes.plot(xs, ys, color=COLOURS[index % len(COLOURS)], marker=marker, linestyle=dash, label=label)
                for x, y, row in zip(xs, ys, mine, strict=True):
                    _interval(axes, axis, x, y, row)
        places = sorted({_number(row.get(axis.x)) for row in rows})
        if len(places) <= MOST_MARKERS:
            axes.set_xticks(places)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for x, label in marks:
            axes.axvline(x, color="#999999", linewidth=0.8)
            axes.annotate(
                label, (x, 1), (3, -3), xycoords=("data", "axes fraction"), textcoords="offset points",
                rotation=90, va="top", fontsize=7, color="#555555",
            )  # fmt: skip


@contextmanager
def _figure(path: Path, axis: Axis, wide: int) -> Iterator[Axes]:
    """Axes to draw on; the figure is written at the end and never enters matplotlib's list of open ones."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(min(14.0, max(7.0, 2.5 + 0.32 * wide)), 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        if axis.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")  # the default one is a formula
        yield axes
        axes.set_title(axis.title)
        axes.set_ylabel(axis.ylabel)
        axes.set_xlabel(axis.xlabel)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        if axis.share:
            axes.set_ylim(0, 1.08)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        handles, labels = _drawn(axes)
        if not handles:
            axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color="#555555")
        else:
            # About 13 characters fit an inch; the handle and the gaps take the room of 8.
            columns = int(13 * figure.get_figwidth() / (max(map(len, labels)) + 8))
            figure.legend(handles, labels, loc="outside lower center", ncols=min(max(1, columns), len(labels)))
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _drawn(axes: Axes) -> tuple[list[Any], list[str]]:
    """The bars and lines that show at least one number, with their labels."""
    found: list[tuple[Any, str]] = []
    for container in axes.containers:
        if any(math.isfinite(bar.get_height()) for bar in container):
            found.append((container, str(container.get_label())))
    for line in axes.lines:
        label = str(line.get_label())
        if not label.startswith("_child") and np.isfinite(np.asarray(line.get_ydata(), np.float64)).any():
            found.append((line, label))
    return [handle for handle, _ in found], [label for _, label in found]


def _interval(axes: Axes, axis: Axis, x: float, y: float, row: Row) -> None:
    if axis.low is None or axis.high is None:
        return
    low, high = _number(row.get(axis.low)), _number(row.get(axis.high))
    if all(map(math.isfinite, (y, low, high))):
        axes.vlines(x, low, high, color="#333333", linewidth=1.2)


def _values(rows: Sequence[Row], column: str | None) -> list[str]:
    """The names in a column, in order of first appearance."""
    return list(dict.fromkeys(_name(row, column) for row in rows))


def _name(row: Row, column: str | None) -> str:
    return "" if column is None else str(row[column])


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
