"""Policies that are only cloned: ACT and Diffusion Policy."""
