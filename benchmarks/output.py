"""What a benchmark leaves: a JSON file, a Markdown table and a chart, and the same table in the terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.timing import Report, Row
from fuyu_jax.runs import markdown, plotting
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.manifest import git_state, machine, package_versions
from fuyu_jax.runs.tables import write_atomically

CHARTED = "vm"  # the bench with enough numbers for a chart
HEADER = ("bench", "case", "batch", "compile (s)", "run (s)", "rate")


def describe_machine() -> dict[str, Any]:
    """The machine and the versions, with the load that it was under."""
    packages = package_versions()
    return {
        **machine(),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "devices": [device.device_kind for device in jax.devices()],
        "packages": {name: packages[name] for name in ("jax", "jaxlib", "numpy")},
        "git": git_state(),
    }


def table(rows: Sequence[Row]) -> str:
    """A Markdown table with a line for each case and batch; rates in several units share a cell."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        times = (seconds(row["compile_s"]), seconds(row["run_s"]))
        lines.setdefault((row["bench"], row["case"], f"{row['batch']:,}", *times), []).append(_rate(row))
    return markdown.table(HEADER, [[*cells, ", ".join(rates)] for cells, rates in lines.items()], text_columns=2)


def _rate(row: Row) -> str:
    rate = row["rate"]
    return f"{rate:,.0f} {row['unit']}" if rate >= 100 else f"{rate:.3g} {row['unit']}"


def ratios_table(ratios: Mapping[str, float]) -> str:
    """The ratios as a Markdown table."""
    return markdown.table(("ratio", "value"), [[name, f"{value:.3g}"] for name, value in ratios.items()])


def seconds(value: float) -> str:
    """Seconds with three significant digits, never in exponent notation; nothing for 0."""
    return "" if value == 0 else f"{value:.3g}" if value >= 1e-4 else f"{value:.6f}"


def prepare_destination(path: Path) -> None:
    """Make the folder of a file that is to be written, before anything is measured.

    Raises:
      UserError: where the name has no `.json` or the folder can't be made or written.
    """
    if path.suffix != ".json":
        raise UserError(f"--json is {path}; give a file name that ends in .json.")
    if path.is_dir():
        raise UserError(f"--json {path} is a folder; give the name of a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder of --json {path} can't be made ({error.strerror}); give another.") from None
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"the folder of --json {path} can't be written; give another.")


def write(path: Path, command: str, about: Mapping[str, Any], report: Report) -> list[Path]:
    """Write `path`, and beside it the table (`.md`) and, where the machine was measured, the chart (`.png`)."""
    content = {"machine": dict(about), "rows": report.rows, "ratios": report.ratios, "notes": report.notes}
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
    written = [path]
    charted = [row for row in report.rows if row["bench"] == CHARTED and row["unit"] == "instructions/s"]
    parts = [f"# Benchmarks\n\nMade by `{command}`.", _about(about), *report.notes]
    if charted:
        chart = path.with_suffix(".png")
        _draw(chart, charted)
        written.append(chart)
        parts.append(f"![Instructions a second by batch size]({chart.name})")
    parts += [table(report.rows), ratios_table(report.ratios)] if report.ratios else [table(report.rows)]
    page = path.with_suffix(".md")
    write_atomically(page, ("\n\n".join(parts) + "\n").encode())
    return [*written, page]


def _about(about: Mapping[str, Any]) -> str:
    load = about["load_average"]
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    return (
        f"Machine: {about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, {about['system']}; "
        f"devices {', '.join(about['devices'])}; {versions}; load average before the run "
        f"{load[0] if load else 'unknown'}. Times are medians; contenders take turns in one process."
    )


def _draw(path: Path, rows: Sequence[Row]) -> None:
    axis = plotting.Axis(
        title="Instructions a second, every program on 4 examples",
        x="programs",
        series="case",
        y="millions",
        ylabel="millions a second",
        xlabel="programs in a batch",
        share=False,
        log=True,
    )
    plotting.bars(path, axis, [{**row, "programs": f"{row['batch']:,}", "millions": row["rate"] / 1e6} for row in rows])
