"""Replay storage for many iterations: each observation stored once, in memory or on disk (docs/replay.md)."""
