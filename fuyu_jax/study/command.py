"""`experiments/study.py`: says what a study costs, runs what is still to run, and reports what there is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.manifest import SOURCE_ROOT
from fuyu_jax.study import front_page
from fuyu_jax.study.packing import StudyData
from fuyu_jax.study.plan import read_plan
from fuyu_jax.study.report import write_report
from fuyu_jax.study.results import Results
from fuyu_jax.study.runner import Runner, cost_text

EXPERIMENTS = SOURCE_ROOT / "experiments"
PLANS = {"study": EXPERIMENTS / "study.toml", "smoke": EXPERIMENTS / "study_smoke.toml"}
PROGRAM = "experiments/study.py"


def main(argv: Sequence[str]) -> None:
    """Prints the cost, runs, packs and reports."""
    parser = Parser("study.py", "Runs a grid of arms and seeds, piece by piece, and reports it.")
    parser.add_argument("--preset", choices=sorted(PLANS), default="study", help="which plan (default study)")
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="another plan, a TOML file like experiments/study.toml"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of runs and compiled programs (default runs/PRESET)"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the packed data (default data/ in --out)")
    parser.add_argument("--report", type=Path, metavar="DIR", help="folder of the report (default report/ in --out)")
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="DIR",
        help="folder with headroom/ and search/, what those scripts left, to be put into the report",
    )
    parser.add_argument("--readme", type=Path, metavar="FILE", help="a README whose marked part is made anew")
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="run the cells whose regime/cell one of these fits, or single runs by regime/cell/sSEED",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at once, each on its share of the cores (default 1)"
    )
    parser.add_argument("--list", action="store_true", help="show what there is to run and what it costs, and leave")
    parser.add_argument("--no_runs", action="store_true", help="run nothing: make the report of the data there are")
    args = parser.parse_args(argv)
    if args.jobs < 1:
        raise UserError(f"--jobs is {args.jobs}; use at least 1.")
    if args.beside and not args.beside.is_dir():
        raise UserError(f"--beside {args.beside} is no folder; give one with headroom/ or search/, like reports.")
    plan = read_plan(args.plan or PLANS[args.preset])
    out: Path = args.out or Path("runs") / ("study" if args.preset == "study" else f"study_{args.preset}")
    data = args.data or out / "data"
    runner = Runner(plan, out, data, EXPERIMENTS / "pilot.py", [Path(sys.executable).name, PROGRAM, *argv], args.jobs)
    wanted = runner.wanted(args.only)
    if not args.no_runs:
        print(cost_text(wanted, runner.waiting(wanted)), flush=True)
    if args.list:
        return
    if not args.no_runs:
        runner.run(wanted)
    results, folder = Results(plan, StudyData.read(data)), args.report or out / "report"
    report = write_report(results, folder, args.beside)
    if args.readme:
        front_page.write_part(results, folder, args.readme)
    print(f"\nreport: {report}")
