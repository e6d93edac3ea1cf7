"""What a learner is made of: optimisers and checkpoints."""
