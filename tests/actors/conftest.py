"""A small robot and actors on a small pocket network."""

from support.pocket_actors import embodiment, keys, make_actor, observe, simulator_spec

__all__ = ["embodiment", "keys", "make_actor", "observe", "simulator_spec"]
