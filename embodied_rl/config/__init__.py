"""From what was composed to frozen dataclasses: schema, plug-ins by name, files of the package, checks."""
