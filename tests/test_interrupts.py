"""The first signal waits for a good moment, the second does not."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from fuyu_jax.runs.errors import Interrupted
from fuyu_jax.runs.interrupts import Interrupts

# Waits for a signal inside one call that never comes back to Python, as a compilation does.
STUCK = """
import ctypes, os, signal, sys
from fuyu_jax.runs.interrupts import Interrupts
with Interrupts():
    print("ready", flush=True)
    libc = ctypes.CDLL(None)
    while True:
        libc.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_until_asked_for(number):
    with Interrupts() as interrupts:
        interrupts.stop_if_asked()
        os.kill(os.getpid(), number)
        assert interrupts.asked == number
        with pytest.raises(Interrupted) as stopped:
            interrupts.stop_if_asked()
        assert stopped.value.number == number
        with pytest.raises(Interrupted), interrupts.at_once():
            raise AssertionError("not reached: a signal came before")


def test_work_that_leaves_nothing_behind_is_stopped_at_once():
    with Interrupts() as interrupts, pytest.raises(Interrupted), interrupts.at_once():
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not reached")


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_another_thread_answers_nothing():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def enter():
        with Interrupts() as interrupts:
            seen.append((signal.getsignal(signal.SIGTERM), interrupts.asked))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(before, None)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_process_that_is_busy_elsewhere(number):
    child = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    assert "once more stops at once" in child.stderr.readline()
    assert child.poll() is None
    child.send_signal(number)
    assert child.wait(60) == 128 + number
    child.stdout.close()
    child.stderr.close()
