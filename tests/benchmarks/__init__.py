"""Measurements behind the figures in docs/measurements.md: `python -m tests.benchmarks <name> key=value…`."""
