"""Handles on roles in other processes, with their workers, messages and boards."""
