"""What repair could reach at most, against the edit budget: `python experiments/headroom.py --help`."""

import sys

import jax

# Of the processor's cores two can be devices, and the search is split over them.
jax.config.update("jax_num_cpu_devices", 2)

from fuyu_jax.headroom import main  # noqa: E402
from fuyu_jax.runs.errors import run_main  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_main(main))
