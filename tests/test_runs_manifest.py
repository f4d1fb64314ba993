"""What a run says of its circumstances, and the line that it shows while it works."""

import io
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from fuyu_jax.runs.manifest import git_state, make_manifest
from fuyu_jax.runs.progress import SECONDS_BETWEEN_LINES, Progress, silence


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True).stdout


def test_the_manifest_is_plain_and_complete(monkeypatch):
    monkeypatch.setenv("JAX_EXAMPLE", "1")
    monkeypatch.setattr(sys, "orig_argv", ["python", "experiments/pilot.py", "--out", "a b"])
    manifest = make_manifest({"splits": {"train": 3}}, {"seed": 7, "data": 0})
    assert manifest["command"] == "python experiments/pilot.py --out 'a b'"
    assert manifest["seeds"] == {"seed": 7, "data": 0}
    assert manifest["data"] == {"splits": {"train": 3}}
    assert manifest["packages"]["jax"] == jax.__version__
    assert manifest["packages"]["numpy"] == np.__version__
    assert manifest["devices"][0]["platform"] == jax.devices()[0].platform
    assert manifest["machine"]["cores"] >= 1 and manifest["machine"]["memory_gib"] > 0
    assert manifest["environment"]["JAX_EXAMPLE"] == "1"
    assert json.loads(json.dumps(manifest, allow_nan=False)) == manifest


def test_the_commit_and_whether_files_differ(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    assert git_state(tmp_path) == {"commit": "unknown", "dirty": None}  # no commit yet
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "untracked").write_text("new")
    assert git_state(tmp_path)["dirty"] is False
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}


def test_somebody_elses_repository_is_not_ours(tmp_path):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    (tmp_path / "site-packages").mkdir()
    assert git_state(tmp_path / "site-packages") == {"commit": "unknown", "dirty": None}


def test_outside_a_checkout_and_without_git(tmp_path, monkeypatch):
    assert git_state(tmp_path)["commit"] == "unknown"
    monkeypatch.setenv("PATH", "")
    assert git_state()["commit"] == "unknown"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_plain_lines_come_every_few_seconds_and_at_the_end():
    stream, clock = io.StringIO(), Clock()
    with Progress("copying", 103, stream, clock) as progress:
        for step in range(103):
            clock.now += 0.5
            progress.update(loss=1 / (step + 1))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 100 * 0.5 / SECONDS_BETWEEN_LINES + 1  # the last few steps have a line of their own
    assert lines[0] == "copying: 10/103, 2/s, loss 0.1, 00:46 left"
    assert lines[-1] == "copying: 103/103, 2/s, loss 0.009709, 00:51 in all"


def test_a_line_that_was_just_shown_is_not_repeated_at_the_end():
    stream, clock = io.StringIO(), Clock()
    with Progress("copying", 1, stream, clock) as progress:
        clock.now += SECONDS_BETWEEN_LINES
        progress.update()
    assert stream.getvalue().count("\n") == 1


def test_work_that_fails_or_does_nothing_still_ends_its_line():
    stream, clock = io.StringIO(), Clock()
    with pytest.raises(KeyError), Progress("work", 10, stream, clock) as progress:
        progress.update(3)
        raise KeyError
    with Progress("nothing", 10, stream, clock):
        pass
    assert stream.getvalue() == "work: 3/10, 0/s, time left unknown\nnothing: 0/10, 0/s, time left unknown\n"


def test_silence_shows_nothing_and_ends():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream in (io.StringIO(), Terminal()):
        with silence(), Progress("work", 2, stream, clock := Clock()) as progress:
            clock.now += 60
            progress.update()
        assert stream.getvalue() == ""
        with silence(False), Progress("work", 2, stream) as progress:
            progress.update()
        assert "work" in stream.getvalue()


def test_a_terminal_gets_one_line_that_moves():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with Progress("copying", 2, stream) as progress:
        progress.update(loss=0.25)
        progress.update(loss=0.125)
    text = stream.getvalue()
    assert text.count("\n") == 1 and "\r" in text
    assert "copying" in text and "2/2" in text and "loss 0.125" in text
