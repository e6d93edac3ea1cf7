"""Configuration: composing YAML, the schema of frozen dataclasses, plug-ins by name, packaged assets, checks."""
