"""Where simulators and learners run: handles to workers, and ranks that learn together."""
