"""Peers are measured in a process of their own, and a missing one is named."""

import pytest

from tests.benchmarks import peers
from tests.benchmarks.peers import PEERS, Peer, measure_peer, measure_speed

pytestmark = pytest.mark.thorough


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(PEERS, "absent", Peer("somebody", "a-package", "a_module_nobody_has", lambda: None))
    result = measure_peer("absent", 1.0)
    assert result.control_steps_per_second is None
    assert result.why_not == "a-package is not installed"


def test_a_picture_follows_every_fifth_step() -> None:
    done: list[str] = []
    speed = measure_speed(lambda: done.append("step"), lambda: done.append("picture"), 0.01)
    assert speed > 0
    assert done == ([*["step"] * 5, "picture"] * (len(done) // 6))


@pytest.mark.process
def test_the_measuring_process_starts(monkeypatch) -> None:
    """A peer that is not installed fails there, with the reason on the last line."""
    if peers.importlib.util.find_spec(PEERS["lift"].module) is None:
        assert "robosuite" in str(peers._run("lift", 0.1, "egl"))
