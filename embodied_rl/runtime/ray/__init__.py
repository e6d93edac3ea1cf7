"""Roles and ranks on the machines of a Ray cluster. Others use `runtime.RayRuntime`; see docs/cluster.md.

Only `cluster.py` imports Ray: actors, answers, placement, and what Ray's errors mean.
"""
