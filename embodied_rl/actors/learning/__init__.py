"""The parts of a learner: optimisers, checkpoints, sharding over ranks, and the transfer of weights."""
