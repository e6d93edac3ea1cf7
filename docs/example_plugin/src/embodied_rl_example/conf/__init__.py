"""Configurations: one folder for each group of keys. This file makes the folder importable."""
