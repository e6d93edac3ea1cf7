"""The embedded critic: a small network that judges progress through a policy's eyes; its training, and its worth."""
