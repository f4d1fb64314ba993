"""Run folders and tables: never two runs in one folder, never half a file, never a slipped column."""

import csv
import datetime
import json
import multiprocessing
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder, run_number
from fuyu_jax.runs.tables import append_csv, format_cell, read_csv, to_csv, to_number

ODD_LABELS = [
    "carriage\rreturn",
    "none",
    "NA",
    "nan",
    "null",
    "None",
    "007",
    "1e5",
    'a "b", c\nd',
    "",
    " x ",
    "#",
    "é|*",
]


def test_runs_number_themselves(tmp_path):
    root = tmp_path / "runs"
    first = RunFolder.create(None, "bc_smoke_s0", root)
    second = RunFolder.create(None, "bc_smoke_s0", root)
    third = RunFolder.create(None, "grpo_echo_pilot_s1", root)
    names = [folder.path.name for folder in (first, second, third)]
    assert names == ["0001_bc_smoke_s0", "0002_bc_smoke_s0", "0003_grpo_echo_pilot_s1"]


def test_the_next_number_is_the_largest_as_a_number_and_other_names_are_skipped(tmp_path):
    for name in ["500_a", "900_a", "1000_a", "2500_a", "9999_b", "10000_c", "best", ".bc", "x_12"]:
        (tmp_path / name).mkdir()
    assert RunFolder.create(None, "new", tmp_path).path.name == "10001_new"
    numbers = {folder.name: run_number(folder) for folder in tmp_path.iterdir()}
    assert numbers["best"] is None and numbers["x_12"] is None and numbers["2500_a"] == 2500


def _create(root):
    return str(RunFolder.create(None, "same", root).path)


def _claim(out):
    try:
        RunFolder.create(out, "same")
    except UserError:
        return 0
    return 1


def test_runs_at_the_same_time_never_share_a_folder(tmp_path):
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        paths = pool.map(_create, [tmp_path / "runs"] * 24, chunksize=1)
        claims = pool.map(_claim, [str(tmp_path / "given")] * 24, chunksize=1)
    assert len(set(paths)) == 24
    assert sum(claims) == 1


def test_a_given_folder_may_be_new_or_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new/inside"):
        assert RunFolder.create(str(tmp_path / name), "bc").path == tmp_path / name


def test_a_folder_in_use_is_refused_by_name_and_left_alone(tmp_path):
    used = tmp_path / "used"
    used.mkdir()
    (used / "metrics.csv").write_text("precious")
    with pytest.raises(UserError, match=r"used is in use; give --out"):
        RunFolder.check_free(str(tmp_path / "used"))
    with pytest.raises(UserError, match=r"used is in use; give --out"):
        RunFolder.create(str(used), "bc")
    assert [path.name for path in used.iterdir()] == ["metrics.csv"]
    assert (used / "metrics.csv").read_text() == "precious"


def test_a_finished_run_is_not_written_over(tmp_path):
    RunFolder.create(str(tmp_path / "run"), "bc")
    with pytest.raises(UserError, match="is in use"):
        RunFolder.create(str(tmp_path / "run"), "bc")


@pytest.mark.parametrize("out", ["file", "file/inside"])
def test_a_file_in_place_of_a_folder_is_refused(tmp_path, out):
    (tmp_path / "file").write_text("text")
    with pytest.raises(UserError, match="is a file|cannot be written"):
        RunFolder.create(str(tmp_path / out), "bc")
    assert (tmp_path / "file").read_text() == "text"


def test_a_name_that_no_folder_can_have_is_refused():
    with pytest.raises(UserError, match="null"):
        RunFolder.create("run\0", "bc")


def test_a_folder_that_cannot_be_written_is_refused():
    with pytest.raises(UserError, match=r"/proc/run cannot be written"):
        RunFolder.create("/proc/run", "bc")


def test_json_holds_no_nan_and_no_numpy(tmp_path):
    folder = RunFolder.create(str(tmp_path / "run"), "bc")
    data = {
        "a": np.float32(0.5),
        "b": [float("nan"), float("inf"), np.nan],
        "c": np.arange(2),
        "d": (True, None, "nan"),
    }
    folder.write_json("results.json", data)
    text = (folder.path / "results.json").read_text()
    assert json.loads(text) == {"a": 0.5, "b": [None, None, None], "c": [0, 1], "d": [True, None, "nan"]}
    assert "NaN" not in text and "Infinity" not in text


def test_a_failed_write_leaves_the_old_file_whole(tmp_path):
    folder = RunFolder.create(str(tmp_path / "run"), "bc")
    folder.write_json("config.json", {"seed": 0})
    with pytest.raises(TypeError):
        folder.write_json("config.json", {"seed": object()})
    folder.write_csv("metrics.csv", ["a"], [{"a": 1}])
    with pytest.raises(ValueError, match="no column for"):
        folder.write_csv("metrics.csv", ["a"], [{"a": 1}, {"b": 2}])
    assert json.loads((folder.path / "config.json").read_text()) == {"seed": 0}
    assert read_csv(folder.path / "metrics.csv") == [{"a": "1"}]
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.json", "experiment_log.md", "metrics.csv"]


def test_the_log_has_one_dated_line_a_message(tmp_path):
    folder = RunFolder.create(str(tmp_path / "run"), "bc_smoke_s0")
    folder.log("copying began")
    folder.log("copying\nended")
    lines = (folder.path / "experiment_log.md").read_text().splitlines()
    assert lines[0] == "# Experiment log: bc_smoke_s0"
    dated = [re.fullmatch(r"- (\S+ \S+) (copying (?:began|ended))", line) for line in lines[2:]]
    assert len(dated) == 2 and all(dated)
    for match in dated:
        datetime.datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, ""), (float("nan"), ""), (np.float32("nan"), ""), (True, "1"), (np.bool_(False), "0"), (7, "7"),
        (np.int32(-3), "-3"), (0.1, "0.1"), (np.float32(0.1), "0.1000000015"), (1 / 3, "0.3333333333"),
        (float("inf"), "inf"), (1e-12, "1e-12"), ("nan", "nan"), ("007", "007"), (2.0, "2"),
    ],
)  # fmt: skip
def test_cells(value, cell):
    assert format_cell(value) == cell


def test_numbers_come_back_from_cells():
    assert to_number("") is None and to_number(None) is None and to_number("nan") is None
    assert to_number("0.25") == 0.25 and to_number(3) == 3.0


def test_appending_keeps_one_header_and_whole_rows(tmp_path):
    path = tmp_path / "log.csv"
    for step in range(5):
        append_csv(path, ["step", "label", "loss"], [{"step": step, "label": 'a "b", c\nd', "loss": 0.5}])
    for step in range(5, 10):
        row = {"step": step, "label": "x", "loss": 0.5} | ({"accuracy": 0.25} if step == 9 else {})
        append_csv(path, ["step", "label", "loss", "accuracy"], [row])
    with path.open(newline="") as file:
        cells = list(csv.reader(file))
    assert cells[0] == ["step", "label", "loss", "accuracy"]
    assert len(cells) == 11 and {len(row) for row in cells} == {4}
    rows = read_csv(path)
    assert [row["step"] for row in rows] == [str(step) for step in range(10)]
    assert [row["accuracy"] for row in rows] == [""] * 9 + ["0.25"]
    assert rows[0]["label"] == 'a "b", c\nd'
    with pytest.raises(ValueError, match="accuracy"):
        append_csv(path, ["step", "label", "loss"], [])
    with pytest.raises(ValueError, match="surprise"):
        append_csv(path, ["step", "label", "loss", "accuracy"], [{"surprise": 1}])


def test_a_row_that_was_cut_is_found(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match="line 3: 1 cells under 2 columns"):
        read_csv(path)


def test_labels_stay_text(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(to_csv(["arm"], [{"arm": label} for label in ODD_LABELS] + [{"arm": "end"}]), newline="")
    assert [row["arm"] for row in read_csv(path)] == [*ODD_LABELS, "end"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"label": st.text(st.characters(codec="utf-8", exclude_characters="\0"))}, optional={"n": st.integers()}
        )
    )
)
def test_any_text_comes_back_from_a_table(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    path.write_text(to_csv(["label", "n"], rows), newline="")
    expected = [{"label": row["label"], "n": str(row["n"]) if "n" in row else ""} for row in rows]
    assert read_csv(path) == expected
