"""How one process holds another: handles, workers, messages, boards."""
