"""`experiments/search.py`: what searches solve against what they spend, with and without a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

import vm
from fuyu_jax.evaluate.measure import EVALUATION_SEED
from fuyu_jax.runs.command_line import Parser, rising_numbers, whole_number
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.manifest import make_manifest
from fuyu_jax.runs.policies import MACHINE, LoadedPolicy, load_policy
from fuyu_jax.runs.progress import Progress
from fuyu_jax.search.advice import ask_policy
from fuyu_jax.search.bottom_up import bottom_up
from fuyu_jax.search.curves import COSTS, Curve, Label
from fuyu_jax.search.exhaustive import DEEPEST, exhaustive
from fuyu_jax.search.found import Answer, Found, all_right
from fuyu_jax.search.guide import GUIDES, SAME_OUTPUTS, Limits
from fuyu_jax.search.lanes import LANES, Searcher
from fuyu_jax.search.summary import Measured, write_results
from vm.behaviour import EVALUATION_SPLITS
from vm.streams import split_manifest
from vm.tasks import LARGEST_SPLIT, Tasks
from vm.types import THREEFRY

ENUMERATIONS = ("bottom_up", *(f"exhaustive_{depth}" for depth in range(1, DEEPEST + 1)))
METHODS = (*GUIDES, *ENUMERATIONS)
SLOW = f"exhaustive_{DEEPEST}"  # only when asked for
FEWER_PUBLIC = (1, 2)  # public examples that judge, beside all of them
FEWER_METHODS = ("policy", "policy_value", "bottom_up")  # that are also measured with fewer
FURTHER = (4, 16)  # methods without a model may go on to so many times the largest budget
LARGEST_BUDGET = 1 << 16


@dataclass(frozen=True)
class SearchSettings:
    """What is measured.

    Attributes:
      run, phase, checkpoint_dir, model: the policy, as `load_policy` takes them.
      budget: executions and forward passes after which answers are counted.
      splits: splits whose tasks are searched.
      tasks: tasks of each.
      methods: of `METHODS`.
      limits: of the searches that a guide leads; its budget is the largest.
      seed: of what is drawn in the searches.
      lanes: tasks that are searched side by side.
      out: the folder of the results, new or empty; None takes the next number under `runs/`.
    """

    run: str
    phase: str | None = None
    checkpoint_dir: str | None = None
    model: str | None = None
    budget: tuple[int, ...] = (1, 8, 32, 128, 512, 2048)
    splits: tuple[str, ...] = EVALUATION_SPLITS
    tasks: int = 64
    methods: tuple[str, ...] = tuple(method for method in METHODS if method != SLOW)
    limits: Limits = Limits(budget=2048)
    seed: int = 0
    lanes: int = LANES
    out: str | None = None


def main(argv: Sequence[str]) -> None:
    """Measures what a command line asks for, writes its files and prints the table over all splits."""
    settings = parse_settings(argv)
    RunFolder.check_free(settings.out)
    loaded = load_policy(Path(settings.run), settings.phase, settings.checkpoint_dir, settings.model)
    splits = {
        split: vm.make_tasks(
            split,
            EVALUATION_SEED,
            settings.tasks,
            loaded.settings.start,
            loaded.settings.public,
            loaded.settings.hidden,
        )
        for split in settings.splits
    }
    folder = RunFolder.create(settings.out, f"search_{loaded.phase}")
    folder.write_json("config.json", asdict(settings) | {"phase": loaded.phase, "policy": loaded.settings.command()})
    data = {split: split_manifest(tasks) for split, tasks in splits.items()}
    folder.write_json("dataset_manifest.json", make_manifest(data, {"tasks": EVALUATION_SEED, "search": settings.seed}))
    print(f"\n{write_results(folder, measure(settings, loaded, splits), settings.budget)}\n\nresults: {folder.path}")


class _Method(NamedTuple):
    """A way to search: makes itself ready for tasks like these, and searches tasks judged by some public examples."""

    prepare: Callable[[Any], object]
    search: Callable[[Any, NDArray[np.bool_], Callable[[int], object]], Found]
    budgets: tuple[int, ...]


def measure(settings: SearchSettings, loaded: LoadedPolicy, splits: dict[str, Tasks]) -> list[Measured]:
    """Every method on every split, judged by all public examples, and some methods by fewer of them."""
    methods = _methods(settings, loaded)
    shown = loaded.settings.public
    plan = [(method, public) for method in methods for public in sorted({shown, *_fewer(method, shown)}, reverse=True)]
    measured = []
    with Progress("searching", len(plan) * len(splits) * settings.tasks) as progress:
        for name, public in plan:
            method = methods[name]
            method.prepare(next(iter(splits.values())).arrays)
            for split, tasks in splits.items():
                began = time.perf_counter()
                found = method.search(tasks.arrays, np.arange(shown) < public, progress.update)
                seconds = time.perf_counter() - began
                measured.append(_measured(Label(name, split, public), found, tasks, method.budgets, seconds))
    return measured


def _fewer(method: str, shown: int) -> tuple[int, ...]:
    return tuple(public for public in FEWER_PUBLIC if public < shown) if method in FEWER_METHODS else ()


def _methods(settings: SearchSettings, loaded: LoadedPolicy) -> dict[str, _Method]:
    """The methods asked for. Guides that ask a model and try as many edits share a searcher."""
    key = jax.random.key(settings.seed, impl=THREEFRY)
    searchers: dict[tuple[bool, int], Searcher] = {}
    methods = {}

    def guided(name: str) -> _Method:
        guide = GUIDES[name]
        edits = settings.limits.edits if guide.prior == "policy" else MACHINE.num_actions - 1
        kind = (guide.asks_model, edits)
        if kind not in searchers:
            limits = replace(settings.limits, edits=edits)
            make_ask = ask_policy(loaded.policy, limits.horizon) if guide.asks_model else None
            searchers[kind] = Searcher(make_ask, limits, MACHINE, settings.budget, settings.lanes)
        searcher = searchers[kind]
        return _Method(
            lambda tasks: searcher.warm_up(loaded.params, tasks, guide),
            lambda tasks, judged, advance: searcher(loaded.params, tasks, guide, key, judged, advance),
            settings.budget,
        )

    def enumerated(name: str) -> _Method:
        budgets = (*settings.budget, *(times * settings.budget[-1] for times in FURTHER))

        def search(tasks: Any, judged: NDArray[np.bool_], advance: Callable[[int], object]) -> Found:
            if name == "bottom_up":
                return bottom_up(tasks, budgets, MACHINE, judged, advance)
            return exhaustive(tasks, budgets, MACHINE, int(name.rsplit("_", 1)[1]), judged, advance)

        everything = np.ones(loaded.settings.public, np.bool_)
        first = lambda tasks: jax.tree.map(lambda leaf: leaf[:1], tasks)  # noqa: E731
        return _Method(lambda tasks: search(first(tasks), everything, lambda count: None), search, budgets)

    for name in settings.methods:
        methods[name] = guided(name) if name in GUIDES else enumerated(name)
    return methods


def _measured(label: Label, found: Found, tasks: Tasks, budgets: tuple[int, ...], seconds: float) -> Measured:
    answers = {"executions": found.by_executions}
    if found.by_passes is not None and GUIDES[label.method].asks_model:
        answers["passes"] = found.by_passes
    curves = {cost: _curve(cost, answers[cost], tasks, budgets) for cost in COSTS if cost in answers}
    return Measured(label, curves, found, seconds)


def _curve(cost: str, answer: Answer, tasks: Tasks, budgets: tuple[int, ...]) -> Curve:
    right = [
        all_right(
            jax.tree.map(lambda leaf, place=place: leaf[:, place], answer.program),
            tasks.public,
            tasks.hidden,
            settings=MACHINE,
        )
        for place in range(len(budgets))
    ]
    return Curve(cost, budgets, answer.accepted, answer.accepted & np.stack(right, axis=1))


def parse_settings(argv: Sequence[str]) -> SearchSettings:
    """The settings that a command line asks for.

    Raises:
      UserError: one sentence, for an unknown option or value.
      SystemExit: with status 0, after printing the help, for `--help`.
    """
    base = SearchSettings("")
    limits = base.limits
    parser = Parser(
        prog="search.py",
        description="Solve rate of verified search against executions and forward passes, with every baseline.",
    )
    parser.add_argument("--run", metavar="RUN", help="folder of the run whose policy searches")
    parser.add_argument("--phase", metavar="NAME", help="which policy, such as bc_policy (default: the last)")
    parser.add_argument("--checkpoint_dir", metavar="DIR", help="where the run's checkpoints are, if they were moved")
    parser.add_argument("--model", metavar="DIR", help="where the run's base model is, if it was moved")
    parser.add_argument(
        "--budget", nargs="+", metavar="N", help=f"rising numbers (default {' '.join(map(str, base.budget))})"
    )
    parser.add_argument("--splits", nargs="+", metavar="NAME", help="splits (default: all of evaluation)")
    parser.add_argument("--tasks", metavar="N", help=f"tasks of each split (default {base.tasks})")
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", help=f"of {', '.join(METHODS)} (default: all but {SLOW})"
    )
    parser.add_argument("--edits", metavar="N", help=f"edits of the policy tried a program (default {limits.edits})")
    parser.add_argument("--attempts", metavar="N", help=f"most beginnings of a search (default {limits.attempts})")
    parser.add_argument("--patience", metavar="N", help="executions without progress before the next (default: no end)")
    parser.add_argument(
        "--same_outputs", metavar="|".join(SAME_OUTPUTS), help=f"programs alike (default {limits.same_outputs})"
    )
    parser.add_argument("--confirm", metavar="0|1", help="whether STOP's head has to believe an answer (default 1)")
    parser.add_argument("--seed", metavar="N", help=f"of what is drawn (default {base.seed})")
    parser.add_argument("--lanes", metavar="N", help=f"tasks searched side by side (default {base.lanes})")
    parser.add_argument("--out", metavar="DIR", help="a new or empty folder (default: the next number under runs/)")
    given = parser.parse_args(argv)
    if given.run is None:
        raise UserError("--run is missing; give the folder of a run.")
    budget = rising_numbers("budget", given.budget, LARGEST_BUDGET, base.budget)
    if budget[0] < 1:
        raise UserError("--budget begins with 0, with which nothing is run; begin with 1 or more.")
    same_outputs = limits.same_outputs if given.same_outputs is None else given.same_outputs
    if same_outputs not in SAME_OUTPUTS:
        raise UserError(f"--same_outputs is {same_outputs!r}; use one of {', '.join(SAME_OUTPUTS)}.")
    return SearchSettings(
        run=given.run,
        phase=given.phase,
        checkpoint_dir=given.checkpoint_dir,
        model=given.model,
        budget=budget,
        splits=_names("splits", given.splits, EVALUATION_SPLITS, base.splits),
        tasks=whole_number("tasks", given.tasks, 2, LARGEST_SPLIT, base.tasks),
        methods=_names("methods", given.methods, METHODS, base.methods),
        limits=Limits(
            budget=budget[-1],
            edits=whole_number("edits", given.edits, 1, MACHINE.num_actions - 1, limits.edits),
            attempts=whole_number("attempts", given.attempts, 1, LARGEST_BUDGET, limits.attempts),
            patience=whole_number("patience", given.patience, 0, LARGEST_BUDGET, limits.patience),
            same_outputs=same_outputs,
            confirm=bool(whole_number("confirm", given.confirm, 0, 1, int(limits.confirm))),
        ),
        seed=whole_number("seed", given.seed, 0, 2**31 - 1, base.seed),
        lanes=whole_number("lanes", given.lanes, 1, 4096, base.lanes),
        out=given.out,
    )


def _names(option: str, given: Sequence[str] | None, known: Sequence[str], default: tuple[str, ...]) -> tuple[str, ...]:
    """The names of an option, each once; `default` where the option is not given."""
    if given is None:
        return default
    if unknown := [name for name in given if name not in known]:
        raise UserError(f"--{option} names {unknown[0]!r}; use some of {', '.join(known)}.")
    if len(set(given)) < len(given):
        raise UserError(f"--{option} is {' '.join(given)}; give each name once.")
    return tuple(given)
