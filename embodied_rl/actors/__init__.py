"""Actors of a network, a sampler and a critic, and the embodiments that normalise for one robot."""
