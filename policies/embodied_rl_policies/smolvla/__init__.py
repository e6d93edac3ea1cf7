"""SmolVLA (arXiv:2506.01844) on plain torch and transformers' modules; compatible with lerobot's checkpoints."""
