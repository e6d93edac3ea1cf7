"""From a configuration to the parts of a run: names become classes here, and nowhere else."""
