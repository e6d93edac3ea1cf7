"""Ranks, the symmetric processes that learn together: their start, their collective operations, their failures."""
