"""The sweep of edit budgets: rows counted by hand, and its command line."""

import json

import numpy as np
import pytest

from fuyu_jax import headroom
from fuyu_jax.headroom import HeadroomSettings, Needs, apart_rows, headroom_rows, parse_settings
from fuyu_jax.runs.errors import UserError, run_main
from fuyu_jax.runs.tables import read_csv

# Five tasks at budgets 0 to 3; 4 edits stand for "not found".
NEEDS = Needs(
    distance=np.array([0, 2, 3, 5, 1], np.int32),
    edits=np.array([0, 1, 4, 3, 2], np.int32),
    executions=np.array([[0, 0, 0, 0], [0, 40, 40, 40], [0, 43, 90, 200], [0, 43, 80, 100], [0, 43, 60, 60]], np.int32),
)


def row_of(rows, **wanted):
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


@pytest.mark.parametrize(
    ("method", "solved", "mean_edits", "executions"),
    [
        ("do_nothing", [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]),
        ("oracle_reference", [1, 2, 3, 4], [0, 1 / 2, 1, 6 / 4], [0, 0, 0, 0]),
        ("oracle_exact", [1, 2, 3, 3], [0, 1 / 2, 1, 1], [0, 169 / 5, 270 / 5, 270 / 5]),
        ("oracle_search", [1, 2, 3, 4], [0, 1 / 2, 1, 6 / 4], [0, 169 / 5, 270 / 5, 400 / 5]),
    ],
)
def test_rows_by_hand(method, solved, mean_edits, executions):
    rows = headroom_rows("val_mixed", NEEDS, range(4))
    for k in range(4):
        row = row_of(rows, method=method, k=k)
        assert tuple(row) == headroom.COLUMNS
        assert (row["n"], row["solve_rate"]) == (5, solved[k] / 5)
        assert row["low"] < row["solve_rate"] < row["high"]
        assert row["mean_edits"] == pytest.approx(mean_edits[k])
        assert row["mean_executions"] == pytest.approx(executions[k])


def test_nothing_solved_has_no_mean():
    needs = NEEDS._replace(distance=NEEDS.distance + 9)
    assert row_of(headroom_rows("val_mixed", needs, [3]), method="oracle_reference")["mean_edits"] is None


def test_what_only_one_oracle_solves():
    """At K=1 task 1 (search) and 4 (reference); at K=3 task 3 (beam) and 2 (reference)."""
    rows = apart_rows("val_mixed", NEEDS, [1, 3])
    assert [tuple(row.values()) for row in rows] == [("val_mixed", 1, 5, 1, 1, 1, 1), ("val_mixed", 3, 5, 0, 1, 1, 3)]
    assert tuple(rows[0]) == headroom.APART_COLUMNS


def test_the_command_line():
    assert parse_settings([]) == HeadroomSettings()
    words = "--k 0 1 4 --tasks 8 --out x --width 2 --start blank --chunk 3"
    given = parse_settings(words.split())
    assert given == HeadroomSettings((0, 1, 4), 8, "x", 2, "blank", 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--k 0 17", "--k is '17'"),
        ("--k 4 2", "--k is 4 2"),
        ("--k -1", "--k"),
        ("--tasks 1", "--tasks is '1'"),
        ("--tasks ten", "--tasks is 'ten'"),
        ("--start empty", "--start is 'empty'"),
        ("--widht 3", "--widht"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(words, said, capsys):
    with pytest.raises(UserError):
        parse_settings(words.split())
    assert run_main(headroom.main, words.split()) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1


def test_a_whole_sweep_and_its_files(tmp_path):
    """Two tasks a split; the same numbers for another chunk size."""
    for chunk in (1, 2):
        headroom.main(f"--k 0 1 3 --tasks 2 --width 1 --chunk {chunk} --out {tmp_path / str(chunk)}".split())
    for name in ("headroom.csv", "headroom_apart.csv"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    rows = read_csv(tmp_path / "1" / "headroom.csv")
    assert len(rows) == 4 * 6 * 3
    data = json.loads((tmp_path / "1" / "headroom.json").read_text())
    assert len(data["rows"]) == len(rows) and data["settings"]["k"] == [0, 1, 3]
    assert (tmp_path / "1" / "headroom.png").stat().st_size > 1000
    assert run_main(headroom.main, ["--tasks", "2", "--out", str(tmp_path / "1")]) == 2
