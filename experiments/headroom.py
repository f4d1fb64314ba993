"""What repair could reach at most, against the edit budget: `python experiments/headroom.py --help`."""

import jax

# Of the processor's cores two can be devices, and the search is split over them.
jax.config.update("jax_num_cpu_devices", 2)

from fuyu_jax.runs.errors import run_script  # noqa: E402

if __name__ == "__main__":
    run_script("fuyu_jax.headroom")
