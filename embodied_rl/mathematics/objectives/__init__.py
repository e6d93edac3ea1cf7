"""The training objectives of policies and critics: advantages, clipped losses, reductions. Pure tensor functions."""
