"""Peers are measured in a process of their own, and a missing one is named."""

import json
import subprocess

import pytest

from tests.benchmarks import peers
from tests.benchmarks.peers import PEERS, Peer, measure_peer, measure_speed

pytestmark = pytest.mark.thorough


@pytest.fixture
def installed(monkeypatch):
    """A peer whose module is there, and that nothing is known of."""
    monkeypatch.setitem(PEERS, "known", Peer("a peer", "pytest", "pytest", lambda: (lambda: None, lambda: None)))


def answer(monkeypatch, replies: list[subprocess.CompletedProcess]) -> list[str]:
    """Let processes reply with these, in turn; returns the OpenGL backends that were tried."""
    tried: list[str] = []

    def run(command, env, **_):
        tried.append(env["MUJOCO_GL"])
        return replies.pop(0)

    monkeypatch.setattr(subprocess, "run", run)
    return tried


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(PEERS, "absent", Peer("somebody", "a-package", "a_module_nobody_has", lambda: None))
    result = measure_peer("absent", 1.0)
    assert result.control_steps_per_second is None
    assert result.why_not == "a-package is not installed"


def test_the_last_line_is_the_figure(monkeypatch, installed) -> None:
    tried = answer(monkeypatch, [subprocess.CompletedProcess([], 0, "welcome\n" + json.dumps(123.5) + "\n", "")])
    result = measure_peer("known", 1.0)
    assert result.control_steps_per_second == 123.5 and result.version.endswith("egl")
    assert tried == ["egl"]


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
