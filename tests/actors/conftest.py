"""A small robot and actors on a small pocket network."""

from tests.support.pocket_actors import embodiment, keys, make_actor, observe, simulator_spec

__all__ = ["embodiment", "keys", "make_actor", "observe", "simulator_spec"]
