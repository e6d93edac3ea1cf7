"""Checkpoints of other projects, there and back."""
