"""Prompts as data: one YAML file each, with a version, which the log of scores names."""
