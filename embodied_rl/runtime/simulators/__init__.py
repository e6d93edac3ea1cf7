"""Simulators of a configuration: their plug-ins, Python environments and handles."""
