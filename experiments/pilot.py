"""Copy the oracle, run a decision update, measure both, report: `python experiments/pilot.py --help`."""

import sys

from fuyu_jax.pilot import main
from fuyu_jax.runs.errors import run_main

if __name__ == "__main__":
    sys.exit(run_main(main))
