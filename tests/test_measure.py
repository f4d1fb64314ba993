"""Ways of stopping, and the rows of outcomes, on episodes written by hand."""

import numpy as np
import pytest

from fuyu_jax.evaluate.measure import Labels, Lanes, array_chunks, chunk_size, join_lanes, outcomes_of, stop_times

LABELS = Labels("grpo_echo", "bc_policy", 3)


def lanes():
    """Three lanes over four steps.

    Lane 0 becomes right after two edits, and STOP says so at once. Lane 1 never does; STOP fires falsely at step 1,
    though the distance head does not believe it. Lane 2 meets the public examples after one edit, but not the hidden
    ones, and is right only at the very end.
    """
    t = True
    f = False
    return Lanes(
        solved=np.array([[f, f, f], [f, f, f], [t, f, f], [t, f, f], [f, f, t]]),
        public_solved=np.array([[f, f, f], [f, f, t], [t, f, f], [t, f, f], [f, f, t]]),
        action=np.array([[5, 7, 9], [6, 8, 10], [11, 7, 12], [5, 0, 13]], np.int32),
        valid=np.array([[t, t, t], [t, f, t], [t, t, t], [t, t, t]]),
        says_stop=np.array([[0.1, 0.2, 0.1], [0.4, 0.5, 0.1], [0.9, 0.9, 0.1], [0.9, 0.9, 0.49]]) >= 0.5,
        done_prob=np.array([[0.1, 0.1, 0.1], [0.1, 0.4, 0.1], [0.9, 0.4, 0.1], [0.9, 0.9, 0.9]], np.float32),
    )


@pytest.mark.parametrize(
    ("mode", "ends", "stopped"),
    [
        ("forced", [4, 4, 4], [0, 0, 0]),
        ("learned", [2, 1, 4], [1, 1, 0]),  # exactly one half is enough
        ("value_gated", [2, 3, 4], [1, 1, 0]),
        ("verified", [2, 4, 1], [1, 0, 1]),
    ],
)
def test_when_episodes_end(mode, ends, stopped):
    end, by_stop = stop_times(lanes(), 4, mode)
    assert end.tolist() == ends
    assert by_stop.tolist() == [bool(x) for x in stopped]


def test_no_stop_is_asked_for_after_the_last_edit():
    """At budget 2, lane 0's STOP at step 2 is never asked for; `verified` still sees that the last program is right."""
    assert stop_times(lanes(), 2, "learned")[1].tolist() == [False, True, False]
    end, stopped = stop_times(lanes(), 2, "verified")
    assert (end.tolist(), stopped.tolist()) == ([2, 2, 1], [True, False, True])


@pytest.mark.parametrize(
    ("mode", "columns"),
    [
        ("forced", {"solved": [0, 0, 1], "ever_solved": [1, 0, 1], "false_stop": [0, 0, 0], "steps": [4, 4, 4],
                    "valid_edits": [4, 3, 4], "edits": ["5 6 11 5", "7 8 7 0", "9 10 12 13"]}),
        ("learned", {"solved": [1, 0, 1], "ever_solved": [1, 0, 1], "false_stop": [0, 1, 0], "steps": [2, 1, 4],
                     "valid_edits": [2, 1, 4], "edits": ["5 6", "7", "9 10 12 13"]}),
        ("verified", {"solved": [1, 0, 0], "ever_solved": [1, 0, 0], "false_stop": [0, 0, 1], "steps": [2, 4, 1],
                      "valid_edits": [2, 3, 1], "edits": ["5 6", "7 8 7 0", "9"]}),
    ],
)  # fmt: skip
def test_rows(mode, columns):
    outcomes = outcomes_of(lanes(), LABELS, mode, "val_mixed", 4)
    for name, expected in columns.items():
        got = getattr(outcomes, name).tolist()
        assert got == (expected if name == "edits" else [type(g)(e) for g, e in zip(got, expected, strict=True)]), name
    assert set(outcomes.phase.tolist()) == {"bc_policy"} and set(outcomes.k.tolist()) == {4}


@pytest.mark.parametrize("mode", ["forced", "learned", "value_gated", "verified"])
def test_budget_zero_is_doing_nothing(mode):
    outcomes = outcomes_of(lanes(), LABELS, mode, "val_mixed", 0)
    assert not outcomes.solved.any() and not outcomes.false_stop.any() and not outcomes.steps.any()
    assert outcomes.edits.tolist() == ["", "", ""]


def test_joining_parts_drops_the_filling():
    joined = join_lanes([lanes(), lanes()], [3, 1])
    assert joined.action.shape == (4, 4)
    assert joined.action[:, 3].tolist() == lanes().action[:, 0].tolist()


def test_a_call_takes_no_more_tasks_than_hold_those_there_are():
    sizes = {1: 1, 2: 2, 3: 4, 16: 16, 17: 32, 64: 64, 65: 64, 256: 64}
    assert {tasks: chunk_size(tasks) for tasks in sizes} == sizes


def test_every_task_is_in_one_part_and_the_last_is_filled_with_its_own():
    parts = array_chunks(np.arange(11), 11, 4)
    assert [part.tolist() for _, part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 8]]
    assert [(rows.start, rows.stop) for rows, _ in parts] == [(0, 4), (4, 8), (8, 11)]
