"""Tasks as JSON lines: written and read back they are the same tasks; a bad line is told by its number."""

import json

import jax
import numpy as np
import pytest

import vm
from vm.taskfile import FIELDS, UNKNOWN_FAMILY, read_tasks, write_tasks
from vm.tasks import make_tasks

COUNT = 16
run = jax.jit(vm.run)


@pytest.fixture(scope="module", params=vm.SPLITS)
def tasks(request):
    return make_tasks(request.param, 3, COUNT, public=4, hidden=2)


def mine(**changes):
    """A task in words of its own."""
    task = {
        "prompt": "Add up what is large",
        "inputs": [[[1, 5, 4], None], [[9, 2], None], [[], None]],
        "targets": [9, 9, 0],
        "public": 2,
        "reference": "FGT 3; SUM",
    }
    return json.dumps({name: value for name, value in {**task, **changes}.items() if value != "absent"})


def test_generated_tasks_come_back_the_same(tasks):
    text = write_tasks([tasks])
    assert len(text.splitlines()) == COUNT
    read, foreign = read_tasks(text)
    assert not foreign and list(read) == [tasks.split]
    back = read[tasks.split]
    assert jax.tree.structure(back.arrays) == jax.tree.structure(tasks.arrays)
    for one, other in zip(jax.tree.leaves(tasks.arrays), jax.tree.leaves(back.arrays), strict=True):
        assert one.dtype == other.dtype and isinstance(other, jax.Array)
        np.testing.assert_array_equal(one, other)
    assert back.prompts == tasks.prompts and back.seed == tasks.seed
    for name in ("indices", "behaviours"):
        one, other = getattr(tasks, name), getattr(back, name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert write_tasks([back]) == text


def test_what_a_line_says(tasks):
    """Checked with the plain listing and Python values, not with the reader."""
    task = json.loads(write_tasks([tasks]).splitlines()[5])
    assert set(task) == set(FIELDS)
    assert task["prompt"] == tasks.prompts[5] and task["family"] == vm.FAMILIES[int(tasks.family[5])]
    assert task["public"] == 4 and len(task["inputs"]) == len(task["targets"]) == 6
    program = vm.assemble(task["reference"])
    assert np.array_equal(program.op, tasks.reference.op[5]) and np.array_equal(program.arg, tasks.reference.arg[5])
    for (x, y), target in zip(task["inputs"], task["targets"], strict=True):
        cells = jax.tree.map(lambda *leaves: np.stack(leaves), vm.from_python(x), vm.from_python(y))
        assert vm.to_python(run(program, cells).output) == target


def test_several_splits_in_one_file():
    parts = [make_tasks(split, 0, 4, hidden=2) for split in ("fresh_paired", "val_mixed")]
    lines = write_tasks(parts).splitlines()
    shuffled = "\n".join([*lines[4:6], "", *lines[:4], *lines[6:]]) + "\n"
    read = read_tasks(shuffled).splits
    assert list(read) == ["val_mixed", "fresh_paired"]
    assert [read[part.split].prompts for part in parts] == [part.prompts for part in parts]


def test_a_task_in_other_words():
    read, foreign = read_tasks(mine())
    tasks = read["file"]
    assert foreign and tasks.prompts == ["Add up what is large"] and tasks.seed == 0 and tasks.indices.tolist() == [0]
    assert vm.disassemble(jax.tree.map(lambda leaf: leaf[0], tasks.start)) == ""
    assert tasks.family.tolist() == [UNKNOWN_FAMILY]
    assert tasks.public.targets.words[0, :, 0].tolist() == [9, 9] and tasks.hidden.targets.type.shape == (1, 1)
    assert json.loads(write_tasks([tasks]))["family"] is None


def test_a_reference_is_not_needed():
    tasks = read_tasks(mine(reference="absent", targets=[1, 2, 3])).splits["file"]
    assert not np.asarray(tasks.reference.op).any() and tasks.arrays.length.tolist() == [0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: it is not JSON"),
        ("[1]", "line 2: it is no JSON object"),
        (mine(promt="x"), "line 2: there is no field 'promt'"),
        (mine(targets="absent"), "line 2: the field 'targets' is missing"),
        (mine(prompt=" "), "line 2: prompt is ' '; use a text"),
        (mine(inputs=[[1], [2], [3]]), "line 2: inputs must be a list with a pair"),
        (mine(targets=[9, 9]), "line 2: targets must be a list with a value for each"),
        (mine(targets=[9, 9.5, 0]), r"line 2: 9\.5 is no value"),
        (mine(targets=[9, None, 0]), "line 2: null is no value"),
        (mine(targets=[9, [True], 0]), r"line 2: \[true\] is no value"),
        (mine(targets=[9, 2**31, 0]), "line 2: 2147483648 does not fit"),
        (mine(targets=[9, [0] * 9, 0]), "line 2: a list of 9 numbers is too long"),
        (mine(inputs=[[True, None]] * 3), "line 2: x must be a number or a list"),
        (mine(inputs=[[1, None], [[1], None], [2, None]]), "line 2: its examples have inputs of different types"),
        (mine(inputs=[[[1], [2]]] * 3), "line 2: x must be a number or a list, and y a number or null"),
        (mine(public=3), "line 2: public is 3 of 3 examples"),
        (mine(public=True), "line 2: public is True"),
        (mine(public=1), "line 2: it has 3 examples, 1 of them public, but line 1 has 3 and 2"),
        (mine(reference="FGT 3; SUMM"), "line 2: 'SUMM' in instruction 2"),
        (mine(reference=3), "line 2: reference is 3"),
        (mine(start="ADDI 16"), "line 2: '16' in instruction 1"),
        (mine(reference="FGT 4; SUM"), "line 2: the reference does not give the target of example 1"),
        (mine(family="sorting"), "line 2: family is 'sorting'; use one of arithmetic_one"),
        (mine(split="all"), "line 2: split is 'all'"),
        (mine(seed=-1), "line 2: seed is -1"),
        (mine(seed=4), "line 2: seed is 4, but split 'file' has seed 0 in line 1"),
        (mine(plan={"frame": 0}), "line 2: plan must be an object"),
        (mine(plan={"frame": 99, "phrasing": [0] * 8}), "line 2: the plan's frame is 99"),
        (mine(plan={"frame": 0, "phrasing": [0] * 7}), "line 2: the plan's phrasing must be 8 numbers"),
        (mine(plan={"frame": 0, "phrasing": [0] * 8}), "line 2: plan and reference make another prompt"),
    ],
)
def test_a_bad_line_is_told_by_its_number(line, said):
    with pytest.raises(ValueError, match=said) as refused:
        read_tasks(f"{mine()}\n{line}\n")
    assert "\n" not in str(refused.value)


def test_an_empty_file_is_refused():
    with pytest.raises(ValueError, match="no task"):
        read_tasks("\n\n")
