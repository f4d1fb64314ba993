"""Repairs a program for a request in words and a few examples, with a run's policy inside verified search.

From Python, loading once and repairing many times:

    repairer = Repairer.load("runs/0001_dagger")
    found = repairer.repair("keep the values > 3, then add them up.", [([1, 5, 4], 9), ([2, 7], 7)])
    found.listing, found.outputs, found.steps

and on the command line:

    python -m fuyu_jax.repair --run RUN --prompt "add up the list" --example "[3,1,2] -> 6"
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import vm
from fuyu_jax.evaluate.again import TextPolicy, encode_prompt
from fuyu_jax.policy import Params
from fuyu_jax.qwen3 import resolve_model
from fuyu_jax.runs.command_line import Parser, whole_number
from fuyu_jax.runs.errors import RunStopped, UserError, run_main
from fuyu_jax.runs.policies import MACHINE, load_policy
from fuyu_jax.search import GUIDES, Limits, Searcher, ask_policy
from fuyu_jax.tokenizer import Tokenizer, load_tokenizer
from vm.edits import describe_action
from vm.grammar import SIGNATURES
from vm.observation import run_all
from vm.types import THREEFRY, PythonValue, Type

BUDGET, LARGEST_BUDGET = 512, 1 << 14
ATTEMPTS = 8  # beginnings of a search whose likeliest edits lead nowhere
ROUND = 16  # prompts are padded to a multiple of this, so that few lengths are compiled
ARROW = "->"

Example = tuple[Any, Any]
"""Inputs and output: x alone or (x, y), and what must come out. Values are ints, bools and lists of ints."""


class _Task(NamedTuple):
    """One task as a search and a `TextPolicy` read it, leading axis 1."""

    public: vm.Examples
    start: vm.Program
    reference: vm.Program
    ids: jax.Array
    mask: jax.Array


class Step(NamedTuple):
    """One edit of a repair: the flat action, what it does in words, and the listing after it."""

    action: int
    edit: str
    listing: str


@dataclass(frozen=True)
class Repair:
    """What a repair came to.

    Attributes:
      solved: the program is right on all examples.
      program: it, or where none was found the one whose outputs are most like the examples'.
      listing: the program as text.
      outputs: what it gives for each example; None after a fault.
      right: whether each is as it must be.
      steps: the edits that lead to it from the start program.
      executions: programs run on the examples.
      passes: forward passes.
    """

    solved: bool
    program: vm.Program
    listing: str
    outputs: list[PythonValue]
    right: list[bool]
    steps: list[Step]
    executions: int
    passes: int


class Repairer:
    """A policy that repairs programs for requests in words; what it compiles is kept from one repair to the next."""

    def __init__(self, policy: TextPolicy, params: Params, tokenizer: Tokenizer, budget: int = BUDGET) -> None:
        """Repair with a given policy.

        Args:
          policy: reads prompts from their tokens.
          params: its parameters.
          tokenizer: the one it was trained with.
          budget: most programs that a repair runs.
        """
        self._policy, self._params, self._tokenizer, self._budget = policy, params, tokenizer, budget
        self._shown = policy.controller(params).heads.num_examples
        limits = Limits(budget=budget, attempts=ATTEMPTS)
        self._search = Searcher(ask_policy(policy, limits.horizon), limits, policy.settings, lanes=1)

    @classmethod
    def load(
        cls,
        run: str | Path,
        phase: str | None = None,
        checkpoint_dir: str | None = None,
        model: str | None = None,
        budget: int = BUDGET,
    ) -> Repairer:
        """The policy of a run; see `load_policy` for the arguments.

        Raises:
          UserError: where the run or its policy cannot be read.
        """
        loaded = load_policy(Path(run), phase, checkpoint_dir, model)
        for note in loaded.notes:
            print(f"note: {note}", file=sys.stderr)
        try:
            tokenizer = load_tokenizer(resolve_model(loaded.settings.model))
        except ValueError as error:
            raise UserError(str(error)) from error
        return cls(TextPolicy.of(loaded.policy), loaded.params, tokenizer, budget)

    def repair(self, prompt: str, examples: Sequence[Example], start: str = "", seed: int = 0) -> Repair:
        """Look for a program that does what a request says and is right on all examples.

        The policy reads the prompt, and the inputs of as many examples as it was trained with: the first ones, or all
        of them again and again.

        Args:
          prompt: the request.
          examples: at least one.
          start: listing of the program to repair.
          seed: of what is drawn, once the likeliest edits have led nowhere.

        Raises:
          UserError: one sentence, where the policy cannot read the prompt, or the examples are none that the machine
            could meet.
        """
        settings = self._policy.settings
        ids, mask = self._encode(prompt)
        wanted = _read_examples(examples, settings)
        try:
            program = vm.assemble(start, settings)
        except ValueError as error:
            raise UserError(f"the start program cannot be read: {error}") from None
        count = len(wanted.targets.type)
        rows = np.arange(self._shown * -(-count // self._shown)) % count
        public = jax.tree.map(lambda leaf: jnp.asarray(leaf[rows])[None], wanted)
        one = jax.tree.map(lambda leaf: leaf[None], program)
        task = _Task(public, one, one, jnp.asarray(ids)[None], jnp.asarray(mask)[None])
        key = jax.random.key(seed, impl=THREEFRY)
        found = self._search(self._params, task, GUIDES["policy_value"], key)
        answer = vm.Program(*(jnp.asarray(field[0]) for field in found.answer.program))
        results = run_all(answer, jax.tree.map(jnp.asarray, wanted.inputs), settings)
        right = vm.values_equal(results.output, jax.tree.map(jnp.asarray, wanted.targets))
        return Repair(
            solved=bool(found.answer.accepted[0]),
            program=answer,
            listing=vm.disassemble(answer, settings),
            outputs=[vm.to_python(jax.tree.map(lambda leaf, e=e: leaf[e], results.output)) for e in range(count)],
            right=np.asarray(right).tolist(),
            steps=_steps(program, found.actions[0], settings),
            executions=int(found.executions[0]),
            passes=int(found.passes[0]),
        )

    def _encode(self, prompt: str) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 and mask bool `[P]` of a prompt."""
        if not prompt.strip():
            raise UserError("the prompt is empty; say what the program is to do.")
        try:
            tokens = encode_prompt(self._tokenizer, prompt)
        except ValueError as error:
            raise UserError(str(error)) from None
        length = max(self._policy.prompt_tokens, -(-len(tokens) // ROUND) * ROUND)
        ids, mask = np.zeros(length, np.int32), np.arange(length) < len(tokens)
        ids[: len(tokens)] = tokens
        return ids, mask


def repair(run: str | Path, prompt: str, examples: Sequence[Example], start: str = "", budget: int = BUDGET) -> Repair:
    """Load the last policy of a run and repair once; `Repairer` loads once and repairs many times."""
    return Repairer.load(run, budget=budget).repair(prompt, examples, start)


def _read_examples(examples: Sequence[Example], settings: vm.Settings) -> vm.Examples:
    """Host arrays of checked examples: inputs `[E, 2]`, targets `[E]`."""
    if not examples:
        raise UserError("there is no example; give at least one input with its output.")
    inputs: list[list[vm.Value]] = []
    targets: list[vm.Value] = []
    known: dict[str, tuple[int, str]] = {}  # by inputs, the number and output of the first example with them
    for number, (given, output) in enumerate(examples, start=1):
        pair = _inputs(given)
        where = f"example {number}"
        if not 1 <= len(pair) <= 2:
            raise UserError(f"{where} has {len(pair)} inputs; give x, or x and y.")
        cells = [_cell(where, value, settings) for value in (*pair, output)]
        types = tuple(Type(int(cell.type)) for cell in cells[:-1])
        if types not in SIGNATURES:
            raise UserError(f"{where}: x must be a number or a list, and y, where there is one, a number.")
        first = inputs[0] if inputs else cells[:-1]
        if tuple(cell.type for cell in first) != tuple(cell.type for cell in cells[:-1]):
            raise UserError(f"{where} has inputs of other types than example 1; give all examples inputs of one kind.")
        said = json.dumps(pair)
        earlier, before = known.setdefault(said, (number, json.dumps(output)))
        if before != json.dumps(output):
            raise UserError(
                f"examples {earlier} and {number} contradict each other: the same input gives {before} and "
                f"{json.dumps(output)}; drop one of them."
            )
        inputs.append(cells[:-1])
        targets.append(cells[-1])
    nothing = vm.from_python(None, settings)
    pairs = [_stack([*cells, nothing][:2]) for cells in inputs]
    return vm.Examples(_stack(pairs), _stack(targets))


def _inputs(given: Any) -> tuple[Any, ...]:
    """The inputs of an example: a tuple holds them, anything else is x alone."""
    return given if isinstance(given, tuple) else (given,)


def _cell(where: str, value: Any, settings: vm.Settings) -> vm.Value:
    numbers = value if isinstance(value, list) else [value]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    if not (whole or isinstance(value, bool)):
        raise UserError(
            f"{where} has {json.dumps(value, default=repr)}, a value the machine lacks; use whole numbers, lists of "
            "them, true or false."
        )
    try:
        return vm.from_python(value, settings)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _stack(values: Sequence[vm.Value]) -> vm.Value:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *values)


def _steps(program: vm.Program, actions: Sequence[int], settings: vm.Settings) -> list[Step]:
    steps = []
    for action in [int(action) for action in actions if action]:
        program, _ = vm.apply_action(program, jnp.int32(action), settings)
        steps.append(Step(action, describe_action(action, settings), vm.disassemble(program, settings)))
    return steps


def parse_example(text: str) -> Example:
    """An example as written on the command line: `[3,1,2] -> 6`, or with two inputs `4, 3 -> 7`.

    Raises:
      UserError: where it cannot be read.
    """
    left, arrow, right = text.partition(ARROW)
    try:
        inputs, output = json.loads(f"[{left}]"), json.loads(right)
    except (ValueError, RecursionError):
        arrow = ""
    if not arrow:
        raise UserError(f'--example {text!r} cannot be read; write it like "[3,1,2] -> 6", or "4, 3 -> 7" for x and y.')
    return tuple(inputs), output


def describe(found: Repair, examples: Sequence[Example]) -> str:
    """What was found, for people."""
    lines = [f"program  {found.listing or '(empty)'}", "outputs"]
    for (given, output), got, right in zip(examples, found.outputs, found.right, strict=True):
        verdict = "right" if right else f"wrong, {json.dumps(output)} was asked for"
        lines.append(f"  {', '.join(map(json.dumps, _inputs(given)))} {ARROW} {json.dumps(got)}  ({verdict})")
    lines.append("edits" if found.steps else "edits    none: the start program is right")
    lines += [f"  {number}. {step.edit:24} {step.listing}" for number, step in enumerate(found.steps, start=1)]
    lines.append(f"tried    {_tried(found)}")
    return "\n".join(lines)


def _tried(found: Repair) -> str:
    programs = "1 program" if found.executions == 1 else f"{found.executions} programs"
    passes = "1 forward pass" if found.passes == 1 else f"{found.passes} forward passes"
    return f"{programs}, {passes}"


def main(argv: Sequence[str]) -> None:
    """Repair what a command line asks for and print the result."""
    parser = Parser("python -m fuyu_jax.repair", "Repairs a program for a request in words and a few examples.")
    parser.add_argument("--run", required=True, metavar="RUN", help="folder of the run whose policy repairs")
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="what the program is to do")
    parser.add_argument(
        "--example", action="append", metavar="TEXT", help='such as "[3,1,2] -> 6"; may be given several times'
    )
    parser.add_argument("--start", default="", metavar="LISTING", help="the program to repair (default: the empty one)")
    parser.add_argument("--budget", metavar="N", help=f"most programs to run (default {BUDGET})")
    parser.add_argument("--seed", metavar="N", help="of what is drawn (default 0)")
    parser.add_argument("--phase", metavar="NAME", help="which policy, such as bc_policy (default: the last)")
    parser.add_argument("--checkpoint_dir", metavar="DIR", help="where the run's checkpoints are, if they were moved")
    parser.add_argument("--model", metavar="DIR", help="where the run's base model is, if it was moved")
    given = parser.parse_args(argv)
    budget = whole_number("budget", given.budget, 1, LARGEST_BUDGET, BUDGET)
    seed = whole_number("seed", given.seed, 0, 2**31 - 1)
    examples = [parse_example(text) for text in given.example or ()]
    _read_examples(examples, MACHINE)  # before a model is loaded
    repairer = Repairer.load(given.run, given.phase, given.checkpoint_dir, given.model, budget)
    found = repairer.repair(given.prompt, examples, given.start, seed)
    if not found.solved:
        raise RunStopped(
            f"no program that is right on every example was found with {_tried(found)}; the nearest was "
            f"{found.listing or 'the empty program'!r}, right on {sum(found.right)} of {len(examples)}; try a larger "
            "--budget, other words or another --start."
        )
    print(describe(found, examples))


if __name__ == "__main__":
    sys.exit(run_main(main))
