"""The training loop of a rank: its parts, the sources of its rollouts, its metrics and the final report."""
