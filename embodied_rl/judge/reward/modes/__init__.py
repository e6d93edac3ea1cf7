"""What training makes of the scores of a rollout: one mode a file."""
