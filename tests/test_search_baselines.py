"""Searches without a model beside plain Python, and curves worked by hand."""

import numpy as np
import pytest
from search_samples import LISTINGS, PUBLIC, SETTINGS, inputs_of, neighbours, outputs_of, pairs_of, tasks, within

from fuyu_jax.search.bottom_up import bottom_up, instructions
from fuyu_jax.search.curves import Curve, Label, area_row, curve_rows, difference_rows, executions_for, ratio_rows
from fuyu_jax.search.exhaustive import exhaustive
from vm import reference

BUDGETS = (1, 60, 4000)
ALL = np.ones(PUBLIC, np.bool_)


@pytest.fixture(scope="module")
def some_tasks():
    return tasks()


def stacks_of(pairs, xs):
    """The stacks a program leaves, one an input; None where it faults."""
    stacks, status, _ = zip(*(reference._execute(pairs, (x,), SETTINGS) for x in xs), strict=True)
    return None if any(status) else tuple(stack[-1] for stack in stacks)


def enumerate_plainly(xs, targets, budget):
    """Programs run, and the first that fits: by length, those with known stacks left out."""
    every = list(zip(*(field.tolist() for field in instructions(SETTINGS)), strict=True))
    fits = lambda pairs: outputs_of(pairs, xs) == targets  # noqa: E731
    run, level, known = 1, [()], {stacks_of((), xs)}
    if fits(()):
        return run, ()
    for _ in range(SETTINGS.slots):
        longer = []
        for pairs in level:
            for instruction in every:
                if run == budget:
                    return run, None
                run += 1
                program = (*pairs, instruction)
                if fits(program):
                    return run, program
                stacks = stacks_of(program, xs)
                if stacks is not None and stacks not in known:
                    known.add(stacks)
                    longer.append(program)
        level = longer
    return run, None


@pytest.mark.parametrize("shown", [1, PUBLIC])
def test_bottom_up_is_the_plain_enumeration(some_tasks, shown):
    found = bottom_up(some_tasks, BUDGETS, SETTINGS, np.arange(PUBLIC) < shown)
    programs = []
    for row, (_, listing, is_list) in enumerate(LISTINGS):
        xs = inputs_of(is_list)[:shown]
        run, program = enumerate_plainly(xs, outputs_of(pairs_of(listing), xs), BUDGETS[-1])
        assert (found.executions[row], found.answer.accepted[row]) == (run, program is not None)
        programs.append(program)
        if program is not None:
            fields = zip(found.answer.program.op[row].tolist(), found.answer.program.arg[row].tolist(), strict=True)
            assert tuple(fields)[: len(program)] == program
        assert found.by_executions.accepted[row].tolist() == [program is not None and run <= b for b in BUDGETS]
    assert any(programs) and found.by_passes is None


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_exhaustive_search_finds_the_fewest_edits(some_tasks, depth):
    found = exhaustive(some_tasks, (10**8,), SETTINGS, depth, ALL)
    for row, (start, listing, is_list) in enumerate(LISTINGS):
        xs = inputs_of(is_list)[:PUBLIC]
        targets = outputs_of(pairs_of(listing), xs)
        near = within(pairs_of(start), depth)
        depths = [edits for program, edits in near.items() if outputs_of(program, xs) == targets]
        actions = [int(action) for action in found.actions[row] if action]
        assert found.answer.accepted[row] == bool(depths)
        made = pairs_of(start)
        for action in actions:
            made = neighbours(made)[action - 1]
        if depths:
            assert len(actions) == min(depths) and outputs_of(made, xs) == targets
        if depths and min(depths) == 0:
            assert found.executions[row] == 1
        elif depths and min(depths) == 1:
            tried = [edit for edit in neighbours(pairs_of(start)) if edit < actions[0]]
            assert found.executions[row] == 1 + len(tried), "the start program, and edits up to the right one"


def test_an_exhaustive_search_is_held_to_its_budget(some_tasks):
    found = exhaustive(some_tasks, (1, 2), SETTINGS, 2, ALL)
    assert found.answer.accepted.tolist() == [True, *[False] * (len(LISTINGS) - 1)]
    with pytest.raises(ValueError, match="4 edits"):
        exhaustive(some_tasks, (1,), SETTINGS, 4, ALL)


def curve(rows, cost="executions", budgets=(1, 4, 16)):
    """A curve from letters, as in `outcomes.csv`."""
    solved = np.array([[letter == "1" for letter in row] for row in rows])
    return Curve(cost, budgets, np.array([[letter != "." for letter in row] for row in rows]), solved)


LABEL = Label("policy", "val_mixed", 4)


def test_rates_and_areas_by_hand():
    some = curve([".11", "..1", "x.x", "111"])
    rows = curve_rows(LABEL, some)
    assert [row["solve_rate"] for row in rows] == [0.25, 0.5, 0.75]
    assert [row["spurious"] for row in rows] == [1, 0, 1]
    assert [row["spurious_rate"] for row in rows] == [0.5, 0.0, 0.25]
    assert rows[0]["low"] < 0.25 < rows[0]["high"] and rows[1]["accepted_rate"] == 0.5
    # Over log2 the budgets are 0, 2 and 4: the middle counts twice as much as an end.
    np.testing.assert_allclose(some.areas(), [0.75, 0.25, 0.0, 1.0])
    assert area_row(LABEL, some)["area"] == pytest.approx(0.5)
    assert some.letters() == [".11", "..1", "x.x", "111"]
    np.testing.assert_array_equal(some.up_to(1).areas(), [0, 0, 0, 1])
    nothing = curve_rows(LABEL, curve(["...", "..."]))[0]
    assert nothing["spurious_rate"] is None and nothing["solve_rate"] == 0


def test_differences_are_paired():
    rows = difference_rows(LABEL, "policy_value", curve([".11", "..1", "..."]), curve([".11", "...", "..1"]))
    assert [row.get("budget") for row in rows] == [1, 4, 16, None]
    figures = {"difference": 0.0, "gained": 1, "lost": 1, "mcnemar_mid_p": pytest.approx(1.0), "n": 3, "budget": 16}
    names = {"method": "policy", "base": "policy_value", "split": "val_mixed", "public": 4, "cost": "executions"}
    assert rows[2] | {"low": 0, "high": 0} == {**names, **figures, "low": 0, "high": 0}
    assert rows[3]["difference"] == 0.0 and rows[3]["low"] < 0 < rows[3]["high"]


def test_how_many_times_the_executions():
    base = curve([".11", "111", "..1", "..."])
    assert executions_for(0.375, base) == pytest.approx(2.0), "half way between 1 and 4, over log2"
    rows = ratio_rows({"policy_value": base, "slow": curve(["...", "..1", "..1", "..."]), "never": curve(["..."] * 4)},
                      "policy_value", 4)  # fmt: skip
    assert [(row["method"], row["times"], row["at_least"]) for row in rows] == [
        ("policy_value", 1.0, None), ("slow", 4.0, None), ("never", None, 4.0),
    ]  # fmt: skip
