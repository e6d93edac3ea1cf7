"""Learned judges as reward source: prompts, scorers, request queue, and rewards from delayed scores."""
