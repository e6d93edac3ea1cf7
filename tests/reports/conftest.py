"""A simulator whose episodes end when their seed says, and a policy that shows what it was given."""

from tests.support.clock import executed, horizon, length, make_actor, make_handles, make_simulator, spec

__all__ = ["executed", "horizon", "length", "make_actor", "make_handles", "make_simulator", "spec"]
