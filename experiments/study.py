"""Does a decision update beat copying? Runs the study and reports it: `python experiments/study.py --help`."""

from fuyu_jax.runs.errors import run_script

if __name__ == "__main__":
    run_script("fuyu_jax.study.command")
