"""Small fakes to test against. Worker processes import `embodied_rl.testing.fake_simulator`, which needs no torch."""

from embodied_rl.testing.fake_actor import RowwiseFakeActor
from embodied_rl.testing.fake_simulator import FakeSimulator

__all__ = ["FakeSimulator", "RowwiseFakeActor"]
