"""Roles and ranks on the machines of a Ray cluster. Other packages use `runtime.RayRuntime`; see docs/cluster.md.

Only `cluster.py` imports Ray: actors, answers, placement, and the translation of Ray's errors.
"""
