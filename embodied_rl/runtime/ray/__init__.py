"""Roles and ranks on the machines of a Ray cluster. Only `cluster.py` imports Ray. See docs/cluster.md."""
