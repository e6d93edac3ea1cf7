"""Bridge between a policy and a robot: reads topics, requests action chunks and publishes commands."""
