"""What a repair could reach at most: solve rate, edits and executions against the edit budget K, for both oracles."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

import vm
from fuyu_jax.evaluate.measure import EVALUATION_SEED, chunks
from fuyu_jax.evaluate.metrics import ALL_SPLITS, wilson
from fuyu_jax.runs import plotting
from fuyu_jax.runs.command_line import Parser, rising_numbers, whole_number
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.manifest import make_manifest
from fuyu_jax.runs.progress import Progress
from fuyu_jax.runs.settings import MAX_BUDGET, STARTS
from fuyu_jax.sharding import split_batch
from vm import lowering, oracle
from vm.beam import search_tasks
from vm.reach import EXACT_EDITS
from vm.tasks import TaskArrays, Tasks

COLUMNS = ("method", "split", "k", "n", "solve_rate", "low", "high", "mean_edits", "mean_executions")
APART_COLUMNS = ("split", "k", "n", "exact_search_only", "search_only", "reference_only", "both")
LARGEST_CHUNK = 256
MACHINE = vm.DEFAULT_SETTINGS

Row = dict[str, Any]


@dataclass(frozen=True)
class HeadroomSettings:
    """What is swept.

    Attributes:
      k: edit budgets.
      tasks: tasks of each split.
      out: the folder, new or empty; None takes the next number under `runs/`.
      width: beam width of the search beyond two edits.
      start: programs that the tasks start from.
      chunk: tasks that are searched at a time; the results don't depend on it.
    """

    k: tuple[int, ...] = tuple(range(MAX_BUDGET + 1))
    tasks: int = 256
    out: str | None = None
    width: int = 8
    start: str = "mixed"
    chunk: int = 1


class Needs(NamedTuple):
    """What N tasks need, on the host."""

    distance: NDArray[np.int32]  # [N], edits to the reference
    edits: NDArray[np.int32]  # [N], edits that the search found, more than was allowed where it found none
    executions: NDArray[np.int32]  # [N, K + 1], programs that the search ran within each budget


def main(argv: Sequence[str]) -> None:
    """Run the sweep that a command line asks for, write its files and print the table over all splits."""
    settings = parse_settings(argv)
    folder = RunFolder.create(settings.out, "headroom")
    with Progress("searching", len(vm.EVALUATION_SPLITS)) as progress:
        needs = {}
        for split in vm.EVALUATION_SPLITS:
            tasks = vm.make_tasks(split, EVALUATION_SEED, settings.tasks, settings.start)
            needs[split] = measure(tasks, max(*settings.k, 1), settings.width, settings.chunk)
            progress.update()
    needs[ALL_SPLITS] = Needs(*(np.concatenate(parts) for parts in zip(*needs.values(), strict=True)))
    rows = [row for split, need in needs.items() for row in headroom_rows(split, need, settings.k)]
    apart = [row for split, need in needs.items() for row in apart_rows(split, need, settings.k)]
    folder.write_csv("headroom.csv", COLUMNS, rows)
    folder.write_csv("headroom_apart.csv", APART_COLUMNS, apart)
    manifest = make_manifest({}, {"evaluation tasks": EVALUATION_SEED})
    folder.write_json(
        "headroom.json", {"settings": asdict(settings), "manifest": manifest, "rows": rows, "apart": apart}
    )
    draw(folder, rows)
    folder.log(f"swept {len(settings.k)} budgets on {settings.tasks} tasks of each split, beam width {settings.width}")
    print(text_table(rows))
    print(f"\nwritten: {folder.path}/headroom.csv, headroom_apart.csv, headroom.json, headroom.png")


def measure(tasks: Tasks, steps: int, width: int, chunk: int) -> Needs:
    """Distances of the tasks and one search of up to `steps` edits, which contains those with a smaller budget."""
    find = _searcher(steps, width, chunk)
    parts = [
        jax.tree.map(lambda leaf, size=rows.stop - rows.start: np.asarray(leaf)[:size], find(arrays))
        for rows, arrays in chunks(tasks)
    ]
    return Needs(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@functools.cache
def _searcher(steps: int, width: int, chunk: int) -> Any:
    """The compiled search, one for all splits."""

    @functools.partial(jax.jit, compiler_options=lowering.compiler_options())
    @split_batch
    def find(tasks: TaskArrays) -> tuple[jax.Array, jax.Array, jax.Array]:
        to_reference = jax.vmap(lambda start, reference: oracle.distance(start, reference, MACHINE).distance)
        found = search_tasks(tasks.start, tasks.public, tasks.hidden, steps, width, MACHINE, chunk)
        return to_reference(tasks.start, tasks.reference), found.edits, found.executions

    return find


def headroom_rows(split: str, needs: Needs, budgets: Sequence[int]) -> list[Row]:
    """The rows of `headroom.csv` for one split; `mean_edits` is over solved tasks, None where there is none.

    `oracle_exact` is the part of `oracle_search` that leaves nothing out: programs within two edits.
    """
    unlimited = np.iinfo(np.int32).max
    exact = np.where(needs.edits <= EXACT_EDITS, needs.edits, unlimited)
    methods = {
        "do_nothing": np.where(needs.edits == 0, 0, unlimited),
        "oracle_reference": needs.distance,
        "oracle_exact": exact,
        "oracle_search": needs.edits,
    }
    none = np.zeros_like(needs.executions)
    within_exact = np.minimum(np.arange(needs.executions.shape[1]), EXACT_EDITS)
    executions = {"oracle_exact": needs.executions[:, within_exact], "oracle_search": needs.executions}
    rows = []
    for method, edits in methods.items():
        for k in budgets:
            solved = edits <= k
            low, high = wilson(int(solved.sum()), len(solved))
            rows.append(
                {
                    "method": method,
                    "split": split,
                    "k": k,
                    "n": len(solved),
                    "solve_rate": float(solved.mean()),
                    "low": low,
                    "high": high,
                    "mean_edits": float(edits[solved].mean()) if solved.any() else None,
                    "mean_executions": float(executions.get(method, none)[:, k].mean()),
                }
            )
    return rows


def apart_rows(split: str, needs: Needs, budgets: Sequence[int]) -> list[Row]:
    """How many tasks one oracle solves and the other does not: the rows of `headroom_apart.csv` for one split.

    `exact_search_only` counts those of `search_only` that the search solves within two edits.
    """
    rows = []
    for k in budgets:
        by_search, by_reference = needs.edits <= k, needs.distance <= k
        only = by_search & ~by_reference
        rows.append(
            {
                "split": split,
                "k": k,
                "n": len(only),
                "exact_search_only": int((only & (needs.edits <= EXACT_EDITS)).sum()),
                "search_only": int(only.sum()),
                "reference_only": int((by_reference & ~by_search).sum()),
                "both": int((by_search & by_reference).sum()),
            }
        )
    return rows


def draw(folder: RunFolder, rows: Sequence[Row]) -> None:
    """The chart: solve rate over the budget, a colour a split and a dash an oracle."""
    shown = [row for row in rows if row["method"] in ("oracle_reference", "oracle_search")]
    axis = plotting.Axis(
        title="What the oracles reach",
        x="k",
        series="split",
        y="solve_rate",
        ylabel="tasks solved",
        xlabel="edit budget K",
        dash="method",
    )
    plotting.lines(folder.path / "headroom.png", axis, shown)


def text_table(rows: Sequence[Row]) -> str:
    """Solve rates over all splits, a line a budget and a column a method."""
    pooled = [row for row in rows if row["split"] == ALL_SPLITS]
    methods = list(dict.fromkeys(row["method"] for row in pooled))
    rates: Mapping[tuple[int, str], float] = {(row["k"], row["method"]): row["solve_rate"] for row in pooled}
    lines = ["  K" + "".join(f"{method:>18}" for method in methods)]
    for k in dict.fromkeys(row["k"] for row in pooled):
        lines.append(f"{k:3}" + "".join(f"{rates[k, method]:18.1%}" for method in methods))
    return "\n".join(lines)


def parse_settings(argv: Sequence[str]) -> HeadroomSettings:
    """The settings that a command line asks for.

    Raises:
      UserError: one sentence, for an unknown option or value.
      SystemExit: with status 0, after printing the help, for `--help`.
    """
    base = HeadroomSettings()
    parser = Parser(
        prog="headroom.py",
        description="Solve rate, edits and executions of both oracles against the edit budget, on every split.",
    )
    parser.add_argument("--k", nargs="+", metavar="K", help=f"edit budgets (default 0 to {MAX_BUDGET})")
    parser.add_argument("--tasks", metavar="N", help=f"tasks of each split (default {base.tasks})")
    parser.add_argument("--out", metavar="DIR", help="a new or empty folder (default: the next number under runs/)")
    parser.add_argument("--width", metavar="N", help=f"beam width of the search, 0 for none (default {base.width})")
    parser.add_argument("--start", metavar="|".join(STARTS), help=f"start programs (default {base.start})")
    parser.add_argument("--chunk", metavar="N", help=f"tasks searched at a time on a device (default {base.chunk})")
    given = parser.parse_args(argv)
    start = base.start if given.start is None else given.start
    if start not in STARTS:
        raise UserError(f"--start is {start!r}; use one of {', '.join(STARTS)}.")
    return HeadroomSettings(
        k=rising_numbers("k", given.k, MAX_BUDGET, base.k),
        tasks=whole_number("tasks", given.tasks, 2, 4096, base.tasks),
        out=given.out,
        width=whole_number("width", given.width, 0, 256, base.width),
        start=start,
        chunk=whole_number("chunk", given.chunk, 1, LARGEST_CHUNK, base.chunk),
    )
