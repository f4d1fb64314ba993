"""Measuring a policy: outcomes of single tasks, and the metrics that follow from them."""
