"""Where the rollouts come from that a rank learns from."""
