"""Roles and ranks on the machines of a Ray cluster. `runtime.RayRuntime` is what others use; docs/cluster.md explains it.

Only `cluster.py` imports Ray: actors, answers, placement, and what Ray's errors mean.
"""
