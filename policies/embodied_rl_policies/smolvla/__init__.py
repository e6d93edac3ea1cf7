"""SmolVLA (arXiv:2506.01844) on plain torch and transformers' modules: lerobot's checkpoints mean the same here."""
