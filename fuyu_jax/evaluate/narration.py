"""An episode's arrays as plain data: what a person reads in `episodes.jsonl` and steps through in the report."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

import vm
from fuyu_jax.evaluate.thoughts import Thoughts
from fuyu_jax.rollout import Episodes
from vm.assembler import disassemble, slot_words
from vm.edits import describe_action
from vm.tasks import TaskArrays

DIGITS = 6  # of probabilities, after the point


class Heading(NamedTuple):
    """Whose episode it is, on which task, with how many edits at most, and how it may stop."""

    phase: str
    split: str
    task: int
    prompt: str
    family: str
    budget: int
    mode: str


def narrate(
    heading: Heading,
    row: int,
    end: int,
    stopped: bool,
    tasks: TaskArrays,
    episodes: Episodes,
    thoughts: Thoughts,
    *,
    settings: vm.Settings,
) -> dict[str, Any]:
    """One episode as plain data: strings, numbers, lists, None.

    Args:
      heading: whose it is; the record begins with it.
      row: which of the B tasks.
      end: edits attempted.
      stopped: whether it ended by STOP.
      tasks: host arrays `[B, ...]`.
      episodes: host arrays of one lane, `[T + 1, B, ...]` and `[T, B, ...]`.
      thoughts: host arrays `[B, ...]`.
      settings: the machine's sizes.
    """
    public = jax.tree.map(lambda leaf: leaf[row], tasks.public)
    mine = jax.tree.map(lambda leaf: leaf[:, row], episodes)
    mind = jax.tree.map(lambda leaf: leaf[row], thoughts)
    solved = mine.solved[: end + 1].tolist()
    return {
        **heading._asdict(),
        "reference": disassemble(_pick(tasks.reference, row), settings),
        "examples": [
            {"inputs": _inputs(public.inputs, number), "target": _value(public.targets, number)}
            for number in range(len(public.targets.type))
        ],
        "start_solved": solved[0],
        "solved": solved[-1],
        "ever_solved": any(solved),
        "end": "stop" if stopped else "budget",
        "edits": end,
        "steps": [_step(time, time == end, stopped, mine, mind, settings) for time in range(end + 1)],
    }


def _step(
    time: int, last: bool, stopped: bool, episode: Episodes, mind: Thoughts, settings: vm.Settings
) -> dict[str, Any]:
    """The program at one moment, and the decision that follows it, if there is one."""
    outputs = _pick(mind.outputs, time)
    step: dict[str, Any] = {
        "step": time,
        "program": slot_words(_pick(episode.program, time), settings),
        "outputs": [_value(outputs, number) for number in range(len(outputs.type))],
        "status": [vm.Status(code).name for code in mind.status[time].tolist()],
        "public_right": int(episode.public[time]),
        "solved": bool(episode.solved[time]),
    }
    if last and not stopped:
        return {**step, "decision": "none"}
    step |= {
        "decision": "stop" if last else "edit",
        "stop_prob": _rounded(episode.stop_prob[time]),
        "value": _rounded(mind.value[time]),
        "distance": _rounded(mind.distance[time]),
        "top_edits": [
            {"action": action, "edit": describe_action(action, settings), "probability": _rounded(probability)}
            for action, probability in zip(mind.top_edits[time].tolist(), mind.top_probs[time].tolist(), strict=True)
            if probability > 0
        ],
    }
    return step if last else {**step, **_edit(time, episode, mind, settings)}


def _edit(time: int, episode: Episodes, mind: Thoughts, settings: vm.Settings) -> dict[str, Any]:
    """The edit taken, what it changed, and what ECHO expected of it."""
    action = int(episode.action[time])
    before, after = (slot_words(_pick(episode.program, moment), settings) for moment in (time, time + 1))
    changed = [
        {"slot": slot, "before": old, "after": new}
        for slot, (old, new) in enumerate(zip(before, after, strict=True))
        if old != new
    ]
    return {
        "action": action,
        "edit": describe_action(action, settings) if action > 0 else "no edit was allowed",
        "valid": bool(episode.valid[time]),
        "changed": changed,
        "echo": _echo(time, mind) if action > 0 else [],
    }


def _echo(time: int, mind: Thoughts) -> list[dict[str, Any]]:
    """The prediction for each public example; right where status, type, length and all words are what came."""
    echo, status = _pick((mind.echo, mind.echo_status), time)
    came, came_status = _pick((mind.outputs, mind.status), time + 1)
    right = (status == came_status) & np.asarray(vm.values_equal(echo, came))
    return [
        {
            "status": vm.Status(int(status[number])).name,
            "type": vm.Type(int(echo.type[number])).name,
            "length": int(echo.length[number]),
            "words": echo.words[number].tolist(),
            "right": bool(right[number]),
        }
        for number in range(len(status))
    ]


def _pick(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], tree)


def _value(values: vm.Value, index: int) -> Any:
    return vm.to_python(_pick(values, index))


def _inputs(inputs: vm.Value, example: int) -> list[Any]:
    """x, or x and y where there is one."""
    pair = [_value(_pick(inputs, example), place) for place in (0, 1)]
    return pair if pair[1] is not None else pair[:1]


def _rounded(number: Any) -> float:
    return round(float(number), DIGITS)
