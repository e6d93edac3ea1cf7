"""The construction of a run's parts from a configuration: the only place that turns names into classes."""
