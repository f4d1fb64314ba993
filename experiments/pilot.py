"""Copy the oracle, run a decision update, measure both, report: `python experiments/pilot.py --help`."""

from fuyu_jax.runs.errors import run_script

if __name__ == "__main__":
    run_script("fuyu_jax.pilot")
