"""Compare arms over runs and seeds, and ask the gate: `python experiments/compare.py RUN RUN ... --out DIR`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.comparison import compare_runs, verdict_text, write_comparison
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.reading import read_run


def main(argv: Sequence[str]) -> None:
    """Compare the runs, write the tables and charts and print each verdict."""
    parser = Parser(
        "compare.py", "Compares finished runs of several arms and seeds, and says PASS or FAIL of each arm."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of finished runs, controls included")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new or empty folder")
    parser.add_argument("--arms", metavar="A,B", help="at most 4 arms, named before the run (default: all there are)")
    args = parser.parse_args(argv)
    compared = compare_runs([read_run(folder) for folder in args.runs], args.arms and args.arms.split(","))
    folder = RunFolder.create(args.out, "compare")
    write_comparison(compared, folder)
    folder.log(f"compared {len(args.runs)} runs of {len(compared.groups)} groups")
    print(f"{verdict_text(compared)}\n\nreport: {folder.path / 'compare.md'}")


if __name__ == "__main__":
    sys.exit(run_main(main))
