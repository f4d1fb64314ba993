"""Measure a saved policy again, or write tasks to a file: `python experiments/evaluate.py --help`."""

from fuyu_jax.runs.errors import run_script

if __name__ == "__main__":
    run_script("fuyu_jax.evaluate.command")
