"""Tasks as JSON lines, for people and other programs: one object a line, a task each.

A line has these fields; the last seven may be left out.

  prompt     the request, as text
  inputs     the examples' inputs, `[[x, y], ...]`: numbers or lists of numbers, y null where there is none
  targets    what the examples' outputs must be: numbers, lists, true or false
  public     how many examples, from the first on, are public; the others are hidden (default 4)
  reference  a listing of a program that gives the targets (default: none, read as the empty program)
  start      a listing of the program to repair (default: the empty program)
  family     the task's family, one of `vm.FAMILIES`, or null (read as -1)
  split      the name of the set of tasks it belongs to (default "file")
  seed       the data seed, the same in a whole split (default 0)
  index      the task's candidate index (default: its place in the split)
  plan       the prompt's frame and phrasings, without which its words are nobody's but the file's

What is written from generated tasks is read back as the very same arrays.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vm.assembler import assemble, disassemble
from vm.behaviour import behaviour_hash, probe_outputs
from vm.chunks import in_chunks, rows
from vm.grammar import FAMILIES, SIGNATURES
from vm.observation import run_all
from vm.phrases import FRAMES, PHRASINGS
from vm.prompts import PromptPlan, render_text
from vm.tasks import TaskArrays, Tasks
from vm.types import DEFAULT_SETTINGS, Examples, Program, Settings, Type, Value, from_python, to_python, values_equal

UNKNOWN_FAMILY = -1
CHUNK = 64  # tasks that are run at a time
REQUIRED = ("prompt", "inputs", "targets")
FIELDS = (*REQUIRED, "public", "reference", "start", "family", "split", "seed", "index", "plan")
RESERVED = "all"  # means every split together in tables

Cell = tuple[int, int, list[int]]  # type, length and words of a value


class TaskFile(NamedTuple):
    """Tasks read from a file.

    Attributes:
      splits: the tasks by split, in the order of the file; `refusals` is empty.
      foreign: whether a prompt has no plan, so that its tokens must come from its text.
    """

    splits: dict[str, Tasks]
    foreign: bool


def write_tasks(splits: Iterable[Tasks]) -> str:
    """The lines of all tasks of these splits, in order."""
    lines = []
    for tasks in splits:
        arrays = jax.tree.map(np.asarray, tasks.arrays)
        lines += [json.dumps(_to_object(tasks, arrays, row), ensure_ascii=False) for row in range(len(tasks))]
    return "".join(f"{line}\n" for line in lines)


def read_tasks(text: str, settings: Settings = DEFAULT_SETTINGS) -> TaskFile:
    """The tasks in the text of a file; empty lines are passed over.

    Raises:
      ValueError: names the line and what is wrong in it.
    """
    tasks = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            tasks.append(_read_object(number, line, settings))
            _check_same_examples(tasks[0], tasks[-1])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not tasks:
        raise ValueError("there is no task in it; write one object a line.")
    splits: dict[str, list[_Task]] = {}
    for task in tasks:
        splits.setdefault(task.split, []).append(task)
    read = {name: _to_tasks(name, members, settings) for name, members in splits.items()}
    return TaskFile(read, any(task.plan is None for task in tasks))


class _Task(NamedTuple):
    """One checked line."""

    line: int
    prompt: str
    inputs: list[list[Cell]]
    targets: list[Cell]
    public: int
    reference: Program | None
    start: Program
    family: int
    split: str
    seed: int
    candidate: int | None
    plan: tuple[int, list[int]] | None  # frame and phrasings


def _to_object(tasks: Tasks, arrays: TaskArrays, row: int) -> dict[str, Any]:
    task: TaskArrays = jax.tree.map(lambda leaf: leaf[row], arrays)
    both = jax.tree.map(lambda *parts: np.concatenate(parts), task.public, task.hidden)
    count, shown = len(both.targets.type), len(task.public.targets.type)
    family = int(task.family)
    return {
        "split": tasks.split,
        "seed": tasks.seed,
        "index": int(tasks.indices[row]),
        "family": None if family == UNKNOWN_FAMILY else FAMILIES[family],
        "prompt": tasks.prompts[row],
        "plan": {"frame": int(task.plan.frame), "phrasing": task.plan.phrasing.tolist()},
        "public": shown,
        "inputs": [[to_python(rows(both.inputs, (e, place))) for place in (0, 1)] for e in range(count)],
        "targets": [to_python(rows(both.targets, e)) for e in range(count)],
        "reference": disassemble(task.reference),
        "start": disassemble(task.start),
    }


def _read_object(number: int, line: str, settings: Settings) -> _Task:
    try:
        entries = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error}).") from None
    if not isinstance(entries, dict):
        raise ValueError("it is no JSON object; write one task a line.")
    if unknown := [name for name in entries if name not in FIELDS]:
        raise ValueError(f"there is no field {unknown[0]!r}; the fields are {', '.join(FIELDS)}.")
    if missing := [name for name in REQUIRED if name not in entries]:
        raise ValueError(f"the field {missing[0]!r} is missing.")
    inputs, targets = entries["inputs"], entries["targets"]
    if not isinstance(inputs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in inputs):
        raise ValueError("inputs must be a list with a pair [x, y] for each example; y is null where there is none.")
    if not isinstance(targets, list) or len(targets) != len(inputs):
        raise ValueError("targets must be a list with a value for each pair of inputs.")
    public = _field(entries, "public", 4, _whole, "a whole number")
    if not 1 <= public < len(inputs):
        raise ValueError(f"public is {public} of {len(inputs)} examples; at least 1 must be public and 1 hidden.")
    family = _field(entries, "family", None, lambda value: value in (None, *FAMILIES), f"one of {', '.join(FAMILIES)}")
    split = _field(entries, "split", "file", _text, "a name")
    if split == RESERVED:
        raise ValueError(f"split is {RESERVED!r}, which means all splits together; use another name.")
    return _Task(
        line=number,
        prompt=_field(entries, "prompt", "", _text, "a text"),
        inputs=[[_cell(x, settings), _cell(y, settings, empty=True)] for x, y in inputs],
        targets=[_cell(value, settings) for value in targets],
        public=public,
        reference=assemble(_listing(entries, "reference"), settings) if entries.get("reference") is not None else None,
        start=assemble(_listing(entries, "start"), settings),
        family=UNKNOWN_FAMILY if family is None else FAMILIES.index(family),
        split=split,
        seed=_field(entries, "seed", 0, _whole, "a whole number"),
        candidate=_field(entries, "index", None, lambda value: value is None or _whole(value), "a whole number"),
        plan=_plan(entries.get("plan"), settings),
    )


def _field(entries: Mapping[str, Any], name: str, default: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
    value = entries.get(name, default)
    if not fits(value):
        raise ValueError(f"{name} is {value!r}; use {wanted}.")
    return value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _listing(entries: Mapping[str, Any], name: str) -> str:
    return _field(entries, name, "", lambda value: isinstance(value, str), "a listing such as 'FGT 3; SUM'")


def _cell(value: Any, settings: Settings, empty: bool = False) -> Cell:
    numbers = value if isinstance(value, list) else [value]
    plain = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if not (plain or isinstance(value, bool) or (empty and value is None)):
        raise ValueError(f"{json.dumps(value)} is no value; use a whole number, a list of them, true or false.")
    cell = from_python(value, settings)
    return int(cell.type), int(cell.length), np.asarray(cell.words).tolist()


def _plan(plan: Any, settings: Settings) -> tuple[int, list[int]] | None:
    if plan is None:
        return None
    if not isinstance(plan, dict) or plan.keys() != {"frame", "phrasing"}:
        raise ValueError("plan must be an object with 'frame' and 'phrasing'; leave it out for other words.")
    frame, phrasing = plan["frame"], plan["phrasing"]
    if not _whole(frame) or frame >= len(FRAMES):
        raise ValueError(f"the plan's frame is {frame!r}; use a number below {len(FRAMES)}.")
    if not (
        isinstance(phrasing, list)
        and len(phrasing) == settings.slots
        and all(_whole(choice) and choice < PHRASINGS for choice in phrasing)
    ):
        raise ValueError(f"the plan's phrasing must be {settings.slots} numbers below {PHRASINGS}.")
    return frame, phrasing


def _check_same_examples(first: _Task, task: _Task) -> None:
    sizes, wanted = ((len(each.targets), each.public) for each in (task, first))
    if sizes != wanted:
        raise ValueError(
            f"it has {sizes[0]} examples, {sizes[1]} of them public, but line {first.line} has {wanted[0]} and "
            f"{wanted[1]}; give all tasks of a file as many."
        )


def _to_tasks(split: str, members: Sequence[_Task], settings: Settings) -> Tasks:
    """The tasks of one split, with all checks that need whole programs."""
    for task in members:
        if task.seed != members[0].seed:
            raise ValueError(
                f"line {task.line}: seed is {task.seed}, but split {split!r} has seed {members[0].seed} in line "
                f"{members[0].line}; name the splits apart."
            )
    signature = np.array([_signature(task) for task in members], np.int32)
    blank = assemble("", settings)
    reference = _stack([task.reference or blank for task in members])
    inputs, targets = _values([task.inputs for task in members]), _values([task.targets for task in members])
    behaviours = _judge(members, reference, signature, inputs, targets, settings)
    frame, phrasing = zip(*(task.plan or (0, [0] * settings.slots) for task in members), strict=True)
    length = np.sum(np.asarray(reference.op) > 0, axis=-1).astype(np.int32)
    plan = PromptPlan(
        frame=jnp.asarray(frame, jnp.int32),
        phrasing=jnp.asarray(phrasing, jnp.int32),
        length=jnp.asarray(length),
        x_type=inputs.type[:, 0, 0],
    )
    for row, task in enumerate(members):
        if task.plan is not None and render_text(rows(plan, row), rows(reference, row)) != task.prompt:
            raise ValueError(
                f"line {task.line}: plan and reference make another prompt than the one that is given; leave the plan "
                "out."
            )
    public = members[0].public
    examples = Examples(inputs, targets)
    here, there = (
        jax.tree.map(lambda leaf, cut=cut: leaf[:, cut], examples) for cut in (slice(public), slice(public, None))
    )
    family = jnp.asarray([task.family for task in members], jnp.int32)
    start = _stack([task.start for task in members])
    indices = [row if task.candidate is None else task.candidate for row, task in enumerate(members)]
    return Tasks(
        split=split,
        seed=members[0].seed,
        indices=np.array(indices, np.uint32),
        prompts=[task.prompt for task in members],
        arrays=TaskArrays(here, there, reference, start, family, plan, jnp.asarray(length)),
        behaviours=behaviours,
        refusals={},
    )


def _signature(task: _Task) -> int:
    """The index in `SIGNATURES` of the inputs' types, which all examples of a task share."""
    for x, y in task.inputs:
        types = tuple(Type(cell[0]) for cell in (x, y) if cell[0] != Type.EMPTY)
        if types not in SIGNATURES:
            raise ValueError(f"line {task.line}: x must be a number or a list, and y a number or null.")
        if (x[0], y[0]) != (task.inputs[0][0][0], task.inputs[0][1][0]):
            raise ValueError(f"line {task.line}: its examples have inputs of different types.")
    return SIGNATURES.index(types)


@functools.partial(jax.jit, static_argnames="settings")
def _run_chunk(
    program: Program, signature: jax.Array, inputs: Value, targets: Value, settings: Settings
) -> tuple[jax.Array, jax.Array]:
    """Which targets programs give, bool `[N, E]`, and the hashes of their behaviours, uint32 `[N, 2]`."""

    def one(program: Program, signature: jax.Array, inputs: Value, targets: Value) -> tuple[jax.Array, jax.Array]:
        right = values_equal(run_all(program, inputs, settings).output, targets)
        return right, behaviour_hash(probe_outputs(program, signature, settings), signature)

    return jax.vmap(one)(program, signature, inputs, targets)


def _judge(
    members: Sequence[_Task],
    reference: Program,
    signature: np.ndarray,
    inputs: Value,
    targets: Value,
    settings: Settings,
) -> np.ndarray:
    """The references' behaviours, uint64 `[N]`. Refuses targets that a given reference does not give."""
    run_chunk = functools.partial(_run_chunk, settings=settings)
    right, behaviour = in_chunks(run_chunk, CHUNK, reference, signature, inputs, targets)
    for row, task in enumerate(members):
        if task.reference is not None and not right[row].all():
            example = int(np.argmin(right[row])) + 1
            raise ValueError(f"line {task.line}: the reference does not give the target of example {example}.")
    wide = behaviour.astype(np.uint64)
    return wide[:, 0] << np.uint64(32) | wide[:, 1]


def _stack(programs: Sequence[Program]) -> Program:
    return Program(*(jnp.asarray(np.stack(leaves)) for leaves in zip(*programs, strict=True)))


def _values(cells: Sequence[Any]) -> Value:
    """Cells in nested lists of one shape, as a `Value` with that shape."""
    types, lengths, words = (_pick(cells, field) for field in range(3))
    return Value(*(jnp.asarray(np.array(leaf, np.int32)) for leaf in (types, lengths, words)))


def _pick(cells: Any, field: int) -> Any:
    return cells[field] if isinstance(cells, tuple) else [_pick(inner, field) for inner in cells]
