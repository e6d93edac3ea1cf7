"""The runtimes in which simulators and learners run: one machine, or a Ray cluster."""
