"""Pool runs that differ in their seed only: `python experiments/seeds.py RUN RUN RUN --out reports`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fuyu_jax.runs.command_line import Parser
from fuyu_jax.runs.errors import run_main
from fuyu_jax.runs.pooling import pool_runs, pooled_table, write_pool


def main(argv: Sequence[str]) -> None:
    """Pool the runs, write the report and print its table."""
    parser = Parser("seeds.py", "Pools finished runs that differ in their seed only into one table.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of finished runs, a seed each")
    parser.add_argument("--out", type=Path, required=True, help="where pilot.json and pilot.md go")
    parser.add_argument("--readme", type=Path, help="a README whose marked table is replaced")
    args = parser.parse_args(argv)
    pooled = pool_runs(args.runs)
    print(f"{pooled_table(pooled)}\n\nreport: {write_pool(pooled, args.out, args.readme)}")


if __name__ == "__main__":
    sys.exit(run_main(main))
