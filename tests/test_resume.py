"""A run that is stopped at any moment and goes on ends with the bytes and bits of one that never stopped."""

import contextlib
import math
import multiprocessing
import os
import random
import resource
import shlex
import shutil
import signal
import time
from pathlib import Path

import jax
import pytest
import toy_runs
from toy_runs import OPTIONS, contents

from fuyu_jax import pilot
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.settings import ARMS as ALL_ARMS
from fuyu_jax.runs.tables import read_csv

ARMS = ("bc", "bc_continued", "grpo_echo")


def run_toy(folder, argv, before_update=lambda: None):
    """Runs a toy in a folder, where it has its own shelf of copied policies, and gives its exit status."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        toy_runs.install(patch, before_update)
        return run_main(pilot.main, argv)


def begin(arm="grpo_echo", *more):
    return ["--arm", arm, *OPTIONS, "--out", "run", *more]


RESUME = ["--resume", "run"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What a run of each arm leaves that never stopped."""
    folder = tmp_path_factory.mktemp("straight")
    for arm in ARMS:
        assert run_toy(folder / arm, begin(arm)) == 0
    return {arm: contents(folder / arm / "run") for arm in ARMS}


def stop_at(update, number=signal.SIGTERM):
    """Sends this process a signal before an update; copying's and the decision update's are counted together."""
    seen = []

    def before_update():
        seen.append(0)
        if len(seen) == update:
            os.kill(os.getpid(), number)

    return before_update


def test_the_straight_run_is_what_the_others_are_compared_with(straight):
    """Every update once, all phases measured, and numbers that hang on the parameters."""
    assert len({found["metrics.csv"] for found in straight.values()}) == len(ARMS)
    saved = {name for name in straight["grpo_echo"] if name.startswith("checkpoints")}
    assert {Path(name).name for name in saved if "training" not in name} == {
        "bc_policy_e1", "bc_policy", "grpo_echo_r1_policy", "grpo_echo_r2_policy",
    }  # fmt: skip
    assert len(saved) == 6, "the last two points are kept"


@pytest.mark.parametrize("update", [1, 3, 4, 7, 9, 13])
def test_a_signal_saves_and_says_how_to_go_on(update, straight, tmp_path, capsys):
    """In the first and second epoch, right after each, and in both rounds."""
    number = signal.SIGINT if update % 2 else signal.SIGTERM
    handlers = [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)]
    status = run_toy(tmp_path, begin("grpo_echo", "--save_every", "1e9"), stop_at(update, number))
    assert status == 128 + number
    assert [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert "interrupted; go on with: python experiments/pilot.py --resume run" in capsys.readouterr().err
    rows = [row for row in read_csv(tmp_path / "run/train_log.csv") if row["kind"] == "update"]
    assert update - 1 <= len(rows) <= update
    assert run_toy(tmp_path, [*RESUME, "--save_every", "0"]) == 0
    assert contents(tmp_path / "run") == straight["grpo_echo"]


@pytest.mark.parametrize(("arm", "stops"), [("bc", 3), ("bc_continued", 7), ("grpo_echo", 7)])
def test_stopping_again_and_again_changes_nothing(arm, stops, straight, tmp_path):
    """The first process is stopped before it makes an update, each further one before its third."""
    assert run_toy(tmp_path, begin(arm, "--save_every", "1e9"), stop_at(1)) == 143
    stopped = 1
    while (status := run_toy(tmp_path, [*RESUME, "--save_every", "0"], stop_at(3))) == 143:
        stopped += 1
        assert stopped <= stops
    assert (status, stopped) == (0, stops)
    assert contents(tmp_path / "run") == straight[arm]
    log = read_csv(tmp_path / "run/train_log.csv")
    updates = [(row["phase"], int(row["update"])) for row in log if row["kind"] == "update"]
    assert updates == [
        *(("bc_policy", number) for number in range(1, 7)),
        *((arm, number) for number in range(1, 8) if arm != "bc"),
    ]


def test_a_finished_run_says_so_and_is_left_alone(straight, tmp_path, capsys):
    assert run_toy(tmp_path, begin()) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert run_toy(tmp_path, RESUME) == 0
    assert "the run in run is finished; its report is run/report.md" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def stopped_run(tmp_path, update=9):
    assert run_toy(tmp_path, begin(), stop_at(update)) == 143
    return tmp_path / "run", sorted((tmp_path / "run/checkpoints/training").iterdir(), key=lambda p: int(p.name[5:]))


@pytest.mark.parametrize("damage", ["metadata.json", "arrays", "half"])
def test_a_damaged_newest_point_falls_back_and_says_so(damage, straight, tmp_path, capsys):
    run, (_, newest) = stopped_run(tmp_path)
    if damage == "half":
        (newest / "metadata.json").write_text((newest / "metadata.json").read_text()[:100])
    elif damage == "arrays":
        shutil.rmtree(newest / "arrays")
    else:
        (newest / damage).unlink()
    assert run_toy(tmp_path, RESUME) == 0
    told = capsys.readouterr().err
    assert newest.name in told and "is left out" in told
    assert contents(run) == straight["grpo_echo"]


def test_damaged_points_are_no_fresh_start(tmp_path, capsys):
    run, points = stopped_run(tmp_path)
    for point in points:
        (point / "metadata.json").unlink()
    before = (run / "outcomes.csv").read_bytes()
    assert run_toy(tmp_path, RESUME) == 2
    assert "no checkpoint in" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoints/training")
    assert run_toy(tmp_path, RESUME) == 2
    assert "no point to go on from" in capsys.readouterr().err
    assert (run / "outcomes.csv").read_bytes() == before


def test_points_that_were_moved_are_asked_for(straight, tmp_path, capsys):
    """Found nowhere they are no fresh start, though the run's own folder holds no policy."""
    assert run_toy(tmp_path, begin("grpo_echo", "--checkpoint_dir", "there"), stop_at(2)) == 143
    (tmp_path / "there").rename(tmp_path / "moved")
    before = (tmp_path / "run/train_log.csv").read_bytes()
    assert run_toy(tmp_path, RESUME) == 2
    assert "there/run/training has no point to go on from; say with --checkpoint_dir" in capsys.readouterr().err
    assert (tmp_path / "run/train_log.csv").read_bytes() == before
    assert run_toy(tmp_path, [*RESUME, "--checkpoint_dir", "moved"]) == 0
    for name in toy_runs.TABLES:
        assert (tmp_path / "run" / name).read_bytes() == straight["grpo_echo"][name]


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run_toy(tmp_path, begin("bc", "--checkpoint_dir", "file")) == 2
    assert "file/run cannot be made (Not a directory)" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_signal_while_tasks_are_made_says_how_to_go_on(straight, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(pilot, "make_manifest", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        assert run_toy(tmp_path, begin()) == 130
    assert "interrupted; go on with: python experiments/pilot.py --resume run" in capsys.readouterr().err
    assert run_toy(tmp_path, RESUME) == 0
    assert contents(tmp_path / "run") == straight["grpo_echo"]


def test_leftovers_of_a_killed_process_are_swept(straight, tmp_path):
    run, _ = stopped_run(tmp_path)
    (run / ".metrics.csv.17.tmp").write_text("half")
    for folder in ("checkpoints/.grpo_echo_r1_policy.17.tmp", "checkpoints/training/.step_99.17.tmp/arrays"):
        (run / folder).mkdir(parents=True)
    with (run / "train_log.csv").open("a") as file:
        file.write("grpo_echo,99,upd")
    assert run_toy(tmp_path, RESUME) == 0
    assert contents(run) == straight["grpo_echo"]


def test_a_lost_log_is_said(tmp_path, capsys):
    run, _ = stopped_run(tmp_path)
    (run / "train_log.csv").write_text("phase\n")
    assert run_toy(tmp_path, RESUME) == 2
    assert "train_log.csv has lost its end" in capsys.readouterr().err


def test_two_processes_never_write_one_run(straight, tmp_path, capsys):
    run, _ = stopped_run(tmp_path)
    holder = RunFolder.reopen(run)
    assert run_toy(tmp_path, RESUME) == 2
    assert "run is still going on" in capsys.readouterr().err
    holder.close()
    assert run_toy(tmp_path, RESUME) == 0
    assert contents(run) == straight["grpo_echo"]


def test_other_settings_are_refused(tmp_path, capsys):
    run, _ = stopped_run(tmp_path)
    assert run_toy(tmp_path, [*RESUME, "--updates", "9"]) == 2
    assert "--updates is given beside --resume" in capsys.readouterr().err
    config = run / "config.json"
    config.write_text(config.read_text().replace('"update_lr": 0.003', '"update_lr": 0.002'))
    assert run_toy(tmp_path, RESUME) == 2
    assert "settings.update_lr 0.003, but here settings.update_lr is 0.002" in capsys.readouterr().err
    assert run_toy(tmp_path, ["--resume", "nowhere"]) == 2
    assert "nowhere is no run" in capsys.readouterr().err
    config.write_text('{"run": "another", "seed": 0}')  # as of a search
    assert run_toy(tmp_path, RESUME) == 2
    assert "does not hold the settings of a training run" in capsys.readouterr().err


@pytest.mark.usefixtures("no_programs_kept")
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(straight, tmp_path, capsys):
    """Files may not grow past some bytes from the ninth update on."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    seen = []

    def fill():
        seen.append(0)
        if len(seen) == 9:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, limit[1]))

    try:
        assert run_toy(tmp_path, begin(), fill) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("error: ") and "cannot be written (File too large)" in told[-1]
    assert run_toy(tmp_path, RESUME) == 0
    assert contents(tmp_path / "run") == straight["grpo_echo"]


def test_a_changed_code_is_said_and_its_policies_are_not_shared(tmp_path, monkeypatch, capsys):
    assert run_toy(tmp_path, begin(), stop_at(2)) == 143
    monkeypatch.setattr("fuyu_jax.runs.shared_bc.code_digest", lambda: "changed")
    assert run_toy(tmp_path, RESUME) == 0
    assert "have changed since the run stopped" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_run_that_found_its_copied_policy_goes_on(straight, tmp_path):
    """Its copied policies come from the shelf, so that no update of copying happens in it."""
    assert run_toy(tmp_path, begin("bc")) == 0
    shutil.rmtree(tmp_path / "run")
    assert run_toy(tmp_path, begin(), stop_at(2)) == 143
    assert run_toy(tmp_path, RESUME) == 0
    assert contents(tmp_path / "run") == straight["grpo_echo"]


def run_child(folder, argv, toy, cache):
    """A run in a process of its own; only the first one compiles."""
    os.chdir(folder)
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    with pytest.MonkeyPatch.context() as patch:
        if toy:
            toy_runs.install(patch)
        raise SystemExit(run_main(pilot.main, argv))


def work(folder, argv, toy, cache, most=math.inf):
    """Runs a process to its end, or kills it after some seconds of work.

    Processor time counts, so that moments are the same whatever else the machine does.

    Returns:
      Its exit status, and the seconds that it worked.
    """
    process = multiprocessing.get_context("forkserver").Process(target=run_child, args=(folder, argv, toy, cache))
    process.start()
    seconds = 0.0
    while process.is_alive() and seconds < most:
        with contextlib.suppress(OSError):  # it may have ended since
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # the user's and the system's
        time.sleep(0.002)
    if seconds >= most:
        process.kill()
    process.join()
    return process.exitcode, seconds


def kill_and_resume(folder, argv, toy, cache, moments):
    """Kills a run, and the processes that go on with it, after these seconds of work; then lets it end."""
    folder.mkdir()
    run = folder / "run"
    statuses = []
    for moment in (*moments, math.inf):
        if run.exists() and not (run / "config.json").exists():
            shutil.rmtree(run)  # killed before there was anything to go on with
        status, _ = work(folder, RESUME if run.exists() else argv, toy, cache, moment)
        statuses.append(status)
    assert statuses[-1] == 0
    return statuses


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """Where processes keep what they compiled, and the seconds of work of a run that has it from there."""
    folder = tmp_path_factory.mktemp("timed")
    words = begin("grpo_echo")
    assert work(folder, words, True, folder / "cache")[0] == 0
    for left in ("run", "runs"):
        shutil.rmtree(folder / left)
    status, seconds = work(folder, words, True, folder / "cache")
    assert status == 0
    return folder / "cache", seconds


@pytest.mark.parametrize("draw", [0, 1])
def test_a_kill_at_a_random_moment(draw, timed, straight, tmp_path):
    """From the start of a process to its end, in a run that saves whenever it can."""
    cache, seconds = timed
    moments = [seconds * random.Random(draw).uniform(0.2, 1.0)]
    statuses = kill_and_resume(tmp_path / "killed", begin(), True, cache, moments)
    assert statuses[0] in (-signal.SIGKILL, 0)
    assert contents(tmp_path / "killed/run") == straight["grpo_echo"]


REAL = shlex.split(
    "--preset smoke --bc_updates 4 --bc_epochs 2 --updates 4 --rounds 2 --batch_tasks 4 --rollout_tasks 4 "
    "--rollout_batch 2 --reuse 1 --states_per_task 2 --group 2 --states_per_rollout 1 --awr_actions 2 --eval_tasks 2 "
    "--budgets 0,4 --oracle_width 1 --save_every 0 --seed 3 --out run"
)


@pytest.fixture(scope="module")
def real_cache(tmp_path_factory):
    """Where all runs of all arms keep what they compiled."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("arm", ALL_ARMS)
def test_kills_at_random_moments_of_a_real_run(arm, real_cache, tmp_path, capfd):
    """Twice or three times each, a resumed process too; 20 kills in all."""
    (tmp_path / "straight").mkdir()
    words = ["--arm", arm, *REAL]
    assert work(tmp_path / "straight", words, False, real_cache)[0] == 0
    (tmp_path / "again").mkdir()
    status, seconds = work(tmp_path / "again", words, False, real_cache)
    assert status == 0
    draw = random.Random(arm)
    moments = [seconds * draw.uniform(0.15, 0.85) for _ in range(3 if arm in ("grpo_echo", "awr") else 2)]
    statuses = kill_and_resume(tmp_path / "killed", words, False, real_cache, moments)
    assert statuses[0] == -signal.SIGKILL
    runs = [tmp_path / name / "run" for name in ("straight", "again", "killed")]
    assert contents(runs[0]) == contents(runs[1]) == contents(runs[2])
    log = (runs[2] / "experiment_log.md").read_text()
    with capfd.disabled():
        print(f"\n{arm}: {statuses}", *[line for line in log.splitlines() if "goes on from" in line], sep="\n")
