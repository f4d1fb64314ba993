"""Measure the machine and what is built on it: `python experiments/bench.py --help`."""

import sys
from pathlib import Path

import jax

# The benchmarks are not part of the installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Of the processor's cores two can be devices; what is not split over devices runs on the first one.
jax.config.update("jax_num_cpu_devices", 2)

from fuyu_jax.runs.errors import run_script  # noqa: E402

if __name__ == "__main__":
    run_script("benchmarks.command")
