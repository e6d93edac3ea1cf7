"""Experience kept for longer than an iteration: each observation once, in memory or on disk (docs/replay.md)."""
