"""CSV tables with fixed columns. Text stays text, a missing value is an empty cell, and equal rows give equal bytes."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

OUTCOMES_COLUMNS = (
    "arm", "phase", "seed", "mode", "split", "k", "task", "start_solved", "solved", "ever_solved", "false_stop",
    "steps", "valid_edits", "edits",
)  # fmt: skip

METRICS_COLUMNS = (
    "arm", "phase", "mode", "split", "k", "n", "accuracy", "accuracy_low", "accuracy_high", "new_solved",
    "kept_solved", "false_stop_rate", "valid_edit_rate", "mean_steps",
)  # fmt: skip

LOSS_COLUMNS = (
    "loss", "edit_loss", "stop_loss", "value_loss", "distance_loss", "echo_loss", "policy_loss", "kl_loss",
    "anchor_loss", "replay_loss", "margin", "winner_gain", "loser_gain",
)  # fmt: skip

SIGNAL_COLUMNS = (
    "states", "train_states", "candidates_per_state", "valid_edits", "rollout_success", "reachable_after",
    "destroyed_reachability", "false_stop", "repair_labels", "reward_mean", "reward_std", "zero_spread_groups",
    "solved_tasks", "search_solved", "sibling_rank", "auc_within_2", "auc_within_4", "distance_calibration_error",
    "pairs", "action_spread", "beta", "target_kl", "executions", "oracle_labels",
)  # fmt: skip

DIAGNOSTIC_COLUMNS = (
    "state_set", "kind_accuracy", "action_accuracy", "slot_accuracy", "opcode_accuracy", "argument_accuracy",
    "stop_accuracy", "recall_at_1", "recall_at_16", "rank_accuracy", "echo_accuracy", "stop_calibration_error",
    "kl_to_bc",
)  # fmt: skip

# One table for all three kinds of row: `update` (losses), `signals` (rollouts of a round), `diagnostics` (a phase).
TRAIN_LOG_COLUMNS = (
    "phase", "update", "kind", *LOSS_COLUMNS, "entropy", "clip_fraction", "gradient_norm", "skipped_updates", "tokens",
    *SIGNAL_COLUMNS, *DIAGNOSTIC_COLUMNS,
)  # fmt: skip

METRICS_TEXT = ("arm", "phase", "mode", "split")
TRAIN_LOG_TEXT = ("phase", "kind", "state_set")

Row = Mapping[str, Any]


def format_cell(value: Any) -> str:
    """A value as the text of a cell: "" for None and NaN, 1 and 0 for booleans, ten digits for other floats."""
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else f"{float(value):.10g}"
    return str(value)


def to_csv(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """The CSV text of `rows`, header first; a column that a row lacks is an empty cell.

    Raises:
      ValueError: where a row has a value for which there is no column.
    """
    return _line(columns) + _lines(columns, rows)


def append_csv(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Adds rows to a CSV file. The header is written once; a file with fewer of these columns is widened first.

    Raises:
      ValueError: where the file has a column that `columns` lacks, or a row has one.
    """
    old = read_csv(path) if path.exists() else []
    header = read_header(path) if path.exists() else list(columns)
    if unknown := [name for name in header if name not in columns]:
        raise ValueError(f"{path} has the columns {unknown}, which are not among {list(columns)}.")
    if not path.exists() or header != list(columns):
        write_atomically(path, to_csv(columns, old).encode())
    text = _lines(columns, rows)
    with named_errors(path), path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, every cell as the text it is: "NA", "none" and "007" mean nothing special.

    Raises:
      ValueError: where a row has more or fewer cells than the header.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        rows = []
        for cells in reader:
            if len(cells) != len(header):
                raise ValueError(f"{path}, line {reader.line_num}: {len(cells)} cells under {len(header)} columns.")
            rows.append(dict(zip(header, cells, strict=True)))
    return rows


def read_header(path: Path) -> list[str]:
    """The column names of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def to_number(cell: Any) -> float | None:
    """The number in a cell, or None where there is none."""
    if cell is None or cell == "":
        return None
    number = float(cell)
    return None if math.isnan(number) else number


def read_table(path: Path, text: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of a CSV file with the cells of all but the `text` columns as numbers, None where empty.

    A number without a fraction is an int.
    """
    kept = set(text)
    return [
        {name: cell if name in kept else _tidy(to_number(cell)) for name, cell in row.items()} for row in read_csv(path)
    ]


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file under a temporary name and moves it into place, so that no reader ever sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with named_errors(path):
            temporary.write_bytes(data)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Errors of the system carry this file's name: those of writing, as on a full disk, come with none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _tidy(number: float | None) -> float | None:
    return int(number) if number is not None and number.is_integer() else number


def _lines(columns: Sequence[str], rows: Iterable[Row]) -> str:
    known = set(columns)
    lines = []
    for row in rows:
        if not row.keys() <= known:
            raise ValueError(f"no column for {sorted(row.keys() - known)}; the columns are {list(columns)}.")
        lines.append(_line([format_cell(row.get(name)) for name in columns]))
    return "".join(lines)


def _line(cells: Sequence[str]) -> str:
    """One line of CSV. The writer quotes cells with the line's own end in them only, so it is given both kinds."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"
