"""The evaluation of policies: exact episodes, benchmarks, what is kept of an evaluation, and films."""
