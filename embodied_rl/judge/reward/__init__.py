"""Rewards from scorers: requests leave while simulators run, and what came in time is settled after the rollout."""
