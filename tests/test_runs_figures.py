"""Charts: drawn without a display, from any data, leaving nothing open; and the rows that they say they drew."""

import math
import os
import struct
import subprocess
import sys

import matplotlib.pyplot as plt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread
from run_samples import sample_outcomes, sample_train_log

from fuyu_jax.evaluate.metrics import headline, metrics_from_outcomes
from fuyu_jax.runs import figures, original
from fuyu_jax.runs.figures import CHARTS, RunTables, draw_all, label
from fuyu_jax.runs.plotting import COLOURS, Axis, bars, lines
from fuyu_jax.runs.tables import read_csv

NOTHING = RunTables([], [], [])


def tables(train_log=None, **columns):
    outcomes = sample_outcomes(**columns)
    log = sample_train_log() if train_log is None else train_log
    return RunTables(metrics_from_outcomes(outcomes), log, headline(outcomes))


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_every_chart_of_the_original_is_drawn_with_its_data(tmp_path):
    drawn = draw_all(tables(), tmp_path / "figures")
    names = [figure.name for figure in drawn]
    assert {"accuracy_before_after", "k8_accuracy", "false_stop", "action_stop_accuracy", "headroom"} <= set(names)
    assert {"oracle_by_budget", "valid_edits", "head_accuracy", "training_curves"} <= set(names)
    for figure in drawn:
        assert figure.rows and figure.title and figure.reading
        width, height = png_size(tmp_path / "figures" / f"{figure.name}.png")
        assert width > 500 and height > 300
        assert len(read_csv(tmp_path / "figures" / f"{figure.name}.csv")) == len(figure.rows)
    files = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert files == sorted(f"{name}.{end}" for name in names for end in ("csv", "png"))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_no_data_is_a_labelled_empty_chart(chart, tmp_path):
    assert chart.draw(NOTHING, tmp_path / "chart.png") == []
    assert png_size(tmp_path / "chart.png")[0] > 500


@pytest.mark.parametrize("draw", [bars, lines])
@pytest.mark.parametrize("heights", [[], [math.nan] * 3, [None]])
def test_a_series_without_numbers_looks_like_no_data(draw, heights, tmp_path):
    axis = Axis("Title", "x", "name", "y", "height")
    rows = [{"x": index, "name": "a", "y": height} for index, height in enumerate(heights)]
    draw(tmp_path / "chart.png", axis, rows)
    with_number = [{"x": 0, "name": "a", "y": 0.5}]
    draw(tmp_path / "other.png", axis, with_number)
    colour = [int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5)]

    def has_colour(path):
        return bool((abs(imread(path)[..., :3] * 255 - colour).max(axis=-1) < 1).any())

    assert not has_colour(tmp_path / "chart.png")
    assert has_colour(tmp_path / "other.png")


def test_sixty_reports_leave_no_figure_open(tmp_path):
    before = plt.get_fignums()
    for _ in range(60):
        figures.false_stop(tables_once(), tmp_path / "chart.png")
    assert plt.get_fignums() == before


_CACHE = []


def tables_once():
    if not _CACHE:
        _CACHE.append(tables(tasks=8))
    return _CACHE[0]


def test_charts_need_no_display_and_ignore_an_interactive_backend(tmp_path):
    code = (
        "from pathlib import Path; from fuyu_jax.runs.figures import CHARTS, RunTables; import sys\n"
        f"CHARTS[0].draw(RunTables([], [], []), Path({str(tmp_path)!r}) / 'chart.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "DISPLAY"} | {"MPLBACKEND": "TkAgg"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert png_size(tmp_path / "chart.png")[0] > 500


def test_before_and_after_are_the_copied_and_the_last_round(tmp_path):
    rows = figures.k8_accuracy(tables(rounds=10, copied=0.3, updated=0.9), tmp_path / "chart.png")
    assert [row["policy"] for row in rows] == ["after copying", "after the last update"]
    metrics = tables(rounds=10, copied=0.3, updated=0.9).metrics
    for row, phase in zip(rows, ("bc_policy", "grpo_echo_r10_policy"), strict=True):
        found = [m for m in metrics if (m["phase"], m["mode"], m["split"], m["k"]) == (phase, "learned", "all", 8)]
        assert row["accuracy"] == found[0]["accuracy"]
        assert (row["accuracy_low"], row["accuracy_high"]) == (found[0]["accuracy_low"], found[0]["accuracy_high"])


def test_headroom_uses_each_split_at_its_own_budget(tmp_path):
    rows = figures.headroom(tables(), tmp_path / "chart.png")
    assert {(row["split"], row["k"]) for row in rows} >= {("val_mixed", 8), ("hard_composition", 12)}
    assert len(rows) == 5 * 4
    order = list(dict.fromkeys(row["policy"] for row in rows))
    assert order == ["do nothing", "copied policy", "GRPO + ECHO, round 2", "oracle (reference)"]


def test_arms_with_odd_names_are_all_drawn(tmp_path):
    arms = ["none", "NA", "nan", "_hidden", "$x$"]
    rows = [
        {"arm": arm, "phase": "bc_policy", "mode": "learned", "mean_accuracy_k048": 0.5, "false_stop_rate_k048": 0.1}
        for arm in arms
    ]
    drawn = figures.accuracy_before_after(RunTables([], [], rows), tmp_path / "chart.png")
    assert [row["arm"] for row in drawn] == arms


def test_equal_data_gives_equal_bytes(tmp_path):
    for name in ("a.png", "b.png"):
        figures.headroom(tables_once(), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "_c", "$d"]),
            st.integers(0, 40),
            st.one_of(st.none(), st.floats(0, 1), st.just(math.nan)),
        ),
        max_size=12,
    )
)
def test_any_rows_can_be_drawn(tmp_path_factory, points):
    path = tmp_path_factory.mktemp("charts") / "chart.png"
    axis = Axis("Title", "x", "name", "y", "height", low="low", high="high")
    rows = [{"name": name, "x": x, "y": y, "low": 0.1, "high": None if x % 2 else 0.9} for name, x, y in points]
    for draw in (bars, lines):
        draw(path, axis, rows)
        assert png_size(path)[1] > 100


def test_labels():
    assert label("grpo_echo_r10_policy") == "GRPO + ECHO, round 10"
    assert label("my_arm_r1_policy") == "my_arm, round 1"
    assert label("bc_policy") == "copied policy"
    assert label("none") == "none"


def test_the_originals_figures_agree_with_each_other():
    """Its charts and its headline table tell the same experiment: means over five splits of 16 tasks."""
    learned = {
        row["phase"]: row for row in original.HEADLINE if (row["arm"], row["mode"]) == (original.GRPO, "learned")
    }
    eight = {name: sum(row[name] for row in original.HEADROOM) / 5 for name in ("bc_policy", "oracle")}
    assert eight["bc_policy"] == pytest.approx(learned["bc_policy"]["k8_accuracy"], abs=1e-3)
    assert eight["oracle"] == pytest.approx(0.825, abs=1e-3)
    for row in original.HEADROOM:
        assert row["oracle"] == original.ORACLE[2][row["split"]]
        assert row["do_nothing"] == original.ORACLE[0][row["split"]]
    assert original.before_after("mean_accuracy") == [
        {"arm": original.GRPO, "bc_policy": 0.1, "after_update": 0.071},
        {"arm": original.DPO, "bc_policy": 0.092, "after_update": 0.079},
    ]
    assert original.before_after("k8_accuracy")[0] == {"arm": original.GRPO, "bc_policy": 0.138, "after_update": 0.0}
