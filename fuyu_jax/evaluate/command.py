"""`experiments/evaluate.py`: measures a saved policy again, or writes tasks to a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuyu_jax.evaluate.again import TextPolicy, measure_again, sampled_rates, with_tokens
from fuyu_jax.evaluate.measure import EVALUATION_SEED, Labels, chunk_size
from fuyu_jax.evaluate.metrics import ALL_SPLITS, metrics_from_outcomes, summary
from fuyu_jax.policy import Policy, make_play
from fuyu_jax.qwen3 import resolve_model
from fuyu_jax.runs.checkpoints import tree_digest
from fuyu_jax.runs.command_line import Parser, rising_numbers, whole_number
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.manifest import make_manifest
from fuyu_jax.runs.markdown import table
from fuyu_jax.runs.policies import LoadedPolicy, load_policy, read_config
from fuyu_jax.runs.progress import Progress
from fuyu_jax.runs.settings import MAX_BUDGET, PilotSettings
from fuyu_jax.runs.tables import METRICS_COLUMNS, OUTCOMES_COLUMNS, write_atomically
from fuyu_jax.runs.wording import percent
from fuyu_jax.tokenizer import load_tokenizer
from vm.behaviour import EVALUATION_SPLITS, SPLITS
from vm.streams import split_manifest, tasks_digest
from vm.taskfile import TaskFile, read_tasks, write_tasks
from vm.tasks import LARGEST_SPLIT, Tasks, make_tasks

MODE = "learned"  # of the printed table


@dataclass(frozen=True)
class Request:
    """What is asked for; None takes what the run did.

    Attributes:
      run: the run's folder; None only to write tasks.
      phase: which of its policies.
      checkpoint_dir: where its checkpoints are, if not where the run says.
      model: where its base model is, if not where the run says.
      k: edit budgets.
      splits: splits to measure.
      data_seed: seed of the tasks.
      tasks: tasks of each split.
      tasks_file: a file of tasks in place of generated ones.
      sampled: sampled episodes for each task and budget.
      out: folder of the results.
      export_tasks: a file to write the tasks to, in place of measuring.
    """

    run: str | None
    phase: str | None
    checkpoint_dir: str | None
    model: str | None
    k: tuple[int, ...] | None
    splits: tuple[str, ...] | None
    data_seed: int
    tasks: int | None
    tasks_file: str | None
    sampled: int
    out: str | None
    export_tasks: str | None


def main(argv: Sequence[str]) -> None:
    """Does what a command line asks for, and prints where the results are."""
    request = parse_request(argv)
    if request.export_tasks is not None:
        settings = PilotSettings() if request.run is None else PilotSettings.from_dict(read_config(Path(request.run)))
        path = Path(request.export_tasks)
        _write_new(path, write_tasks(_read_or_make(request, settings).splits.values()))
        print(f"tasks: {path}")
        return
    assert request.run is not None  # parse_request saw to it
    RunFolder.check_free(request.out)
    loaded = load_policy(Path(request.run), request.phase, request.checkpoint_dir, request.model)
    for note in loaded.notes:
        print(f"note: {note}", file=sys.stderr)
    policy, splits = _readable(request, loaded, _read_or_make(request, loaded.settings))
    folder = RunFolder.create(request.out, f"evaluate_{loaded.phase}")
    print(f"\n{evaluate(request, loaded._replace(policy=policy), splits, folder)}\n\nresults: {folder.path}")


def evaluate(request: Request, loaded: LoadedPolicy, splits: Mapping[str, Tasks], folder: RunFolder) -> str:
    """Measures a policy on tasks that it can read, writes what it found to a folder, and returns a table of it."""
    settings = loaded.settings
    folder.write_json("config.json", asdict(request) | {"phase": loaded.phase})
    manifest = make_manifest(_manifests(request, splits), {"tasks": request.data_seed, "sampling": settings.seed})
    policy_of = {"run": request.run, "phase": loaded.phase, "sha256": tree_digest(loaded.params.trained)}
    folder.write_json("dataset_manifest.json", manifest | {"policy": policy_of})
    play = make_play(loaded.policy, settings.no_repeat)
    budgets = settings.budgets if request.k is None else request.k
    size = chunk_size(settings.eval_tasks)
    labels = Labels(settings.arm, loaded.phase, settings.seed)
    with Progress(f"measuring {loaded.phase}", len(splits)) as progress:
        outcomes = measure_again(
            play, loaded.params, splits, budgets, settings.budgets, size, labels, lambda split: progress.update()
        )
    results: dict[str, Any] = summary(outcomes)
    if request.sampled:
        lanes = len(settings.budgets)
        with Progress("sampling", len(splits)) as progress:
            results["sampled"] = {}
            for split, part in splits.items():
                results["sampled"][split] = sampled_rates(
                    play, loaded.params, part, budgets, request.sampled, lanes, size, settings.seed
                )
                progress.update()
    rows = metrics_from_outcomes(outcomes)
    folder.write_csv("outcomes.csv", OUTCOMES_COLUMNS, outcomes.rows())
    folder.write_csv("metrics.csv", METRICS_COLUMNS, rows)
    folder.write_json("results.json", results)
    folder.log(f"measured {loaded.phase} of {request.run} on {sum(map(len, splits.values()))} tasks")
    accuracy = {(row["split"], row["k"]): row["accuracy"] for row in rows if row["mode"] == MODE}
    return table(
        ["split", *(f"K={k}" for k in budgets)],
        [[split, *(percent(accuracy[split, k]) for k in budgets)] for split in [*splits, ALL_SPLITS]],
    )


def _read_or_make(request: Request, settings: PilotSettings) -> TaskFile:
    """The tasks of a file, or generated ones."""
    if request.tasks_file is not None:
        return _read_file(Path(request.tasks_file), request, settings)
    count = settings.eval_tasks if request.tasks is None else request.tasks
    made = {
        split: make_tasks(split, request.data_seed, count, settings.start, settings.public, settings.hidden)
        for split in request.splits or EVALUATION_SPLITS
    }
    return TaskFile(made, foreign=False)


def _read_file(path: Path, request: Request, settings: PilotSettings) -> TaskFile:
    try:
        tasks = read_tasks(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--tasks_file: {path} cannot be read ({error.strerror}); give another file.") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    public = next(iter(tasks.splits.values())).public.targets.type.shape[1]
    if request.run is not None and public != settings.public:
        raise UserError(f"{path}: its tasks have {public} public examples, but the policy reads {settings.public}.")
    wanted = request.splits or tuple(tasks.splits)
    if missing := [split for split in wanted if split not in tasks.splits]:
        raise UserError(f"--splits names {missing[0]!r}, but {path} has {', '.join(tasks.splits)}.")
    return tasks._replace(splits={split: tasks.splits[split] for split in wanted})


def _readable(request: Request, loaded: LoadedPolicy, tasks: TaskFile) -> tuple[Policy, dict[str, Tasks]]:
    """The policy and the tasks, with tokens made from their text where a prompt is in words of its own."""
    if not tasks.foreign:
        return loaded.policy, tasks.splits
    tokenizer = load_tokenizer(resolve_model(loaded.settings.model))
    try:
        return TextPolicy.of(loaded.policy), with_tokens(tasks.splits, tokenizer, loaded.policy.prompt_tokens)
    except ValueError as error:
        raise UserError(f"{request.tasks_file}: {error}") from None


def _manifests(request: Request, splits: Mapping[str, Tasks]) -> dict[str, Any]:
    if request.tasks_file is None:
        return {split: split_manifest(tasks) for split, tasks in splits.items()}
    return {
        split: {"file": request.tasks_file, "seed": tasks.seed, "tasks": len(tasks), "sha256": tasks_digest(tasks)}
        for split, tasks in splits.items()
    }


def _write_new(path: Path, text: str) -> None:
    if path.exists():
        raise UserError(f"--export_tasks: {path} exists already; give another file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise UserError(f"--export_tasks: {path} cannot be written ({error.strerror}); give another file.") from None


def parse_request(argv: Sequence[str]) -> Request:
    """What a command line asks for.

    Raises:
      UserError: one sentence, for an unknown option or value.
      SystemExit: with status 0, after printing the help, for `--help`.
    """
    parser = Parser(
        prog="evaluate.py",
        description="Measures a saved policy of a run again: at other budgets, on other tasks, with sampled decoding.",
    )
    parser.add_argument("--run", metavar="RUN", help="folder of the run")
    parser.add_argument("--phase", metavar="NAME", help="which policy, such as bc_policy (default: the last)")
    parser.add_argument("--checkpoint_dir", metavar="DIR", help="where the run's checkpoints are, if they were moved")
    parser.add_argument("--model", metavar="DIR", help="where the run's base model is, if it was moved")
    parser.add_argument("--k", nargs="+", metavar="K", help=f"edit budgets, 0 to {MAX_BUDGET} (default: the run's)")
    parser.add_argument(
        "--splits", nargs="+", metavar="NAME", help="splits (default: all of evaluation, or the file's)"
    )
    parser.add_argument("--data_seed", metavar="N", help=f"seed of the tasks (default {EVALUATION_SEED}, as in runs)")
    parser.add_argument("--tasks", metavar="N", help="tasks of each split (default: the run's number)")
    parser.add_argument("--tasks_file", metavar="FILE", help="tasks as JSON lines, in place of generated ones")
    parser.add_argument("--sampled", metavar="N", help="sampled episodes for each task and budget (default 0)")
    parser.add_argument("--out", metavar="DIR", help="a new or empty folder (default: the next number under runs/)")
    parser.add_argument("--export_tasks", metavar="FILE", help="write the tasks to a file in place of measuring")
    given = parser.parse_args(argv)
    if given.run is None and given.export_tasks is None:
        raise UserError("--run is missing; give the folder of a run.")
    if given.tasks_file is not None and (given.data_seed is not None or given.tasks is not None):
        name = "data_seed" if given.data_seed is not None else "tasks"
        raise UserError(f"--{name} is about generated tasks; leave out either it or --tasks_file.")
    splits = None if given.splits is None else tuple(given.splits)
    if splits is not None and len(set(splits)) < len(splits):
        raise UserError(f"--splits is {' '.join(splits)}; give each split once.")
    if given.tasks_file is None and (unknown := [split for split in splits or () if split not in SPLITS]):
        raise UserError(f"--splits names {unknown[0]!r}; use some of {', '.join(SPLITS)}.")
    return Request(
        run=given.run,
        phase=given.phase,
        checkpoint_dir=given.checkpoint_dir,
        model=given.model,
        k=None if given.k is None else rising_numbers("k", given.k, MAX_BUDGET, ()),
        splits=splits,
        data_seed=whole_number("data_seed", given.data_seed, 0, 2**31 - 1, EVALUATION_SEED),
        tasks=None if given.tasks is None else whole_number("tasks", given.tasks, 1, LARGEST_SPLIT),
        tasks_file=given.tasks_file,
        sampled=whole_number("sampled", given.sampled, 1, 1024),
        out=given.out,
        export_tasks=given.export_tasks,
    )
