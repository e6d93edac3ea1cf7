"""Build simulators from a configuration: find the plug-in, its Python environment, and make handles."""
