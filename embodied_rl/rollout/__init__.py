"""Experience collection: the episode sampler, the rollout buffer, and the collector that fills the buffer."""
