"""Measurements behind the figures in docs/results.md: `python -m tests.benchmarks <name> key=value…`."""
