"""What policies and critics are trained on: advantages, clipped losses, reductions. Pure functions of tensors."""
