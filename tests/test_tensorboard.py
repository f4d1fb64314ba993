"""Event files, read back byte by byte as the format is published, against the train log that they follow."""

import importlib.util
import struct

import pytest
from run_samples import sample_train_log

from fuyu_jax import pilot
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.tables import TRAIN_LOG_COLUMNS
from fuyu_jax.runs.tensorboard import EventFiles


def points(folder):
    """(name, step, value) of all scalars in a folder's event files."""
    return [(value.tag, event.step, value.simple_value) for event in events(folder) for value in event.summary.value]


def events(folder):
    """The events in a folder's files, which are records of length, checksum, message and checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack("<Q", data[at : at + 8])
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += length + 16
    return found


def test_every_number_of_the_train_log_is_a_point_once(tmp_path):
    folder = RunFolder.create(str(tmp_path / "run"), "run")
    rows = sample_train_log(rounds=1)
    files = EventFiles(folder.path)
    for part in (rows[:7], rows[7:8], rows[8:]):
        folder.append_csv("train_log.csv", TRAIN_LOG_COLUMNS, part)
        files.follow()
    expected = []
    phases = ["bc_policy_e1", "bc_policy", "grpo_echo_r1_policy"]
    for row in rows:
        diagnostics = row["kind"] == "diagnostics"
        step = 1 + phases.index(row["phase"]) if diagnostics else row["update"]
        owner = row["state_set"] if diagnostics else row["phase"]
        numbers = {name: value for name, value in row.items() if name not in ("phase", "update", "kind", "state_set")}
        expected += [(f"{row['kind']}/{owner}/{name}", step, pytest.approx(value)) for name, value in numbers.items()]
    assert sorted(points(folder.path / "tensorboard")) == sorted(expected, key=lambda point: point[:2])
    assert len(expected) > 100


def test_a_run_that_goes_on_tells_tensorboard_to_forget(tmp_path):
    folder = RunFolder.create(str(tmp_path / "run"), "run")
    folder.append_csv("train_log.csv", TRAIN_LOG_COLUMNS, sample_train_log(rounds=0)[:3])
    EventFiles(folder.path).follow()
    once = points(folder.path / "tensorboard")
    EventFiles(folder.path).follow()
    assert sorted(points(folder.path / "tensorboard")) == sorted([*once, *once])
    starts = [event for event in events(folder.path / "tensorboard") if event.session_log.status == 1]
    assert len(starts) == 2 and {event.step for event in starts} == {0}


def test_a_missing_package_is_told_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    out = tmp_path / "run"
    assert run_main(pilot.main, ["--tensorboard", "--out", str(out)]) == 2
    assert "pip install 'fuyu-jax[tensorboard]'" in capsys.readouterr().err and not out.exists()
