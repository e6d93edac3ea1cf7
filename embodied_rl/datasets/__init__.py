"""Recorded episodes in the formats of other projects (docs/datasets.md)."""
