"""Measure other simulators of the same kind, if they are installed, each in its own process.

As a script it measures one simulator and prints a line of JSON: `python -m tests.benchmarks.peers fetch 10`.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from typing import Any

import numpy as np

from tests.benchmarks.settings import BenchmarkConfig

_CHUNK = 5  # control steps between two pictures, as in our own measurement
_SIZE = 64  # pixels on each side
_BACKENDS = ("egl", "osmesa")
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Peer:
    """Another simulator, for comparison.

    Attributes:
        title: name in the table. package: its distribution. module: module that is present if it is installed.
        build: returns two functions: one control step with random actions, and one picture.
    """

    title: str
    package: str
    module: str
    build: Callable[[], tuple[Callable[[], None], Callable[[], Any]]]


@dataclass(frozen=True)
class PeerResult:
    """Control steps per second with a 64 × 64 picture every five steps, or the reason why the figure is missing."""

    title: str
    control_steps_per_second: float | None = None
    version: str = ""
    why_not: str = ""


def measure_peer(name: str, seconds: float) -> PeerResult:
    """Measure one peer with OpenGL by EGL, or by OSMesa if EGL fails."""
    peer = PEERS[name]
    if importlib.util.find_spec(peer.module) is None:
        return PeerResult(peer.title, why_not=f"{peer.package} is not installed")
    reason = ""
    for backend in _BACKENDS:
        reply = _run(name, seconds, backend)
        if isinstance(reply, float):
            return PeerResult(peer.title, reply, f"{peer.package} {metadata.version(peer.package)}, {backend}")
        reason = reply
    return PeerResult(peer.title, why_not=f"{peer.package} {metadata.version(peer.package)}: {reason}")


def _run(name: str, seconds: float, backend: str) -> float | str:
    """Measure a peer in a subprocess; return control steps per second, or the last line of its error output."""
    environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", __spec__.name if __name__ != "__main__" else "tests.benchmarks.peers"]
    try:
        done = subprocess.run(
            [*command, name, str(seconds)], capture_output=True, text=True, env=environment, check=False,
            timeout=_START_SECONDS + 3 * seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "it took too long"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1]
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def measure_speed(step: Callable[[], None], picture: Callable[[], Any], seconds: float) -> float:
    """Measure the calls of `step` per second, with a call of `picture` after every fifth."""
    for _ in range(_CHUNK):
        step()
    picture()
    steps, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for _ in range(_CHUNK):
            step()
        picture()
        steps += _CHUNK
    return steps / elapsed


def _fetch() -> tuple[Callable[[], None], Callable[[], Any]]:
    gymnasium = import_module("gymnasium")
    gymnasium.register_envs(import_module("gymnasium_robotics"))
    env = gymnasium.make("FetchPickAndPlace-v4", render_mode="rgb_array", width=_SIZE, height=_SIZE)
    env.reset(seed=0)
    env.action_space.seed(0)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()

    return step, env.render


def _lift() -> tuple[Callable[[], None], Callable[[], Any]]:
    env = import_module("robosuite").make(
        "Lift", robots="Panda", has_renderer=False, has_offscreen_renderer=True, use_camera_obs=False, ignore_done=True
    )
    env.reset()
    rng, (low, high) = np.random.default_rng(0), env.action_spec

    def step() -> None:
        env.step(rng.uniform(low, high))

    return step, lambda: env.sim.render(width=_SIZE, height=_SIZE, camera_name="agentview")


PEERS = {
    "fetch": Peer("gymnasium-robotics FetchPickAndPlace", "gymnasium-robotics", "gymnasium_robotics", _fetch),
    "lift": Peer("robosuite Lift", "robosuite", "robosuite", _lift),
}


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure all peers for `seconds` each."""
    return {"peers": [asdict(measure_peer(name, config.seconds)) for name in PEERS]}


def main() -> None:
    """Measure, in this process, the peer named on the command line."""
    name, seconds = sys.argv[1:]
    print(json.dumps(measure_speed(*PEERS[name].build(), float(seconds))))


if __name__ == "__main__":
    main()
