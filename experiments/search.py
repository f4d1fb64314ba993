"""What verified search solves against what it spends, beside every baseline: `python experiments/search.py --help`."""

from fuyu_jax.runs.errors import run_script

if __name__ == "__main__":
    run_script("fuyu_jax.search.command")
