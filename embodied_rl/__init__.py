"""embodied-rl: online reinforcement learning for vision-language-action policies."""

__version__ = "0.1.0"
