"""Simulators as configured: which one, in which Python environment, behind which handle."""
