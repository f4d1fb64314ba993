"""Benchmarks of the project and what they compare it with; run by `experiments/bench.py`, not part of the package."""
