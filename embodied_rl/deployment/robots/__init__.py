"""Robots as data: which topics a robot has, what a policy sees and commands through them, and within which limits."""
