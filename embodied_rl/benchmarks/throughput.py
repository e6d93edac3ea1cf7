"""Measure a simulator's control steps per second, and compare them with its bare loop, if it offers one."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Simulator
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.remote import RemoteSimulator

CHUNK = 5
"""Control steps between two pictures."""
MIN_ROUNDS = 5
_MOST_CHUNKS = 8


@dataclass(frozen=True)
class Throughput:
    """Measured speeds; every round repeats the same work.

    Attributes:
        envs: environments side by side. chunks: chunks of `CHUNK` control steps in a round, each followed by a picture.
        simulator: control steps per second of each round.
        bare: the same of the bare loop, run right before or after; empty if the simulator offers none.
        transport: share of the time spent on messages and on copying pictures; None for a simulator in this process.
    """

    envs: int
    chunks: int
    simulator: tuple[float, ...]
    bare: tuple[float, ...] = ()
    transport: float | None = None

    @property
    def ratio(self) -> float | None:
        """Return the median over rounds of the simulator's speed as a share of the bare loop's speed."""
        if not self.bare:
            return None
        return statistics.median(ours / bare for ours, bare in zip(self.simulator, self.bare, strict=True))

    def summary(self) -> dict[str, Any]:
        """Return the measurement as a dictionary for the report."""
        return {
            "envs": self.envs,
            "control_steps_between_pictures": CHUNK,
            "rounds": len(self.simulator),
            "control_steps_per_second": statistics.median(self.simulator),
            "bare_control_steps_per_second": statistics.median(self.bare) if self.bare else None,
            "ratio_to_bare": self.ratio,
            "transport": self.transport,
        }


def measure_throughput(
    simulator: Simulator, num_envs: int, seconds: float, seed: int, task: str | None = None
) -> Throughput:
    """Time `step` with random actions, in turns with the simulator's `bare_loop` if it has one.

    `bare_loop(actions [chunks, n, H, A])` returns a callable that runs the same physics and renders as many pictures,
    and does nothing else.

    Args:
        simulator: simulator in this process, or in a worker process.
        num_envs: number of environments of the simulator.
        seconds: minimum duration; at least `MIN_ROUNDS` rounds are run.
        seed: seed of episodes and actions.
        task: only this task, or this family; None for all.
    """
    spec, sampler = simulator.spec, EpisodeSampler(simulator.spec, seed, task=task)
    episodes = [sampler.episode(index) for index in range(num_envs)]
    chunks = max(1, min(_MOST_CHUNKS, (spec.horizon - 1) // CHUNK))  # short of the horizon, so that nothing is reset
    rng = np.random.default_rng(seed)
    shape = (chunks, num_envs, CHUNK, spec.action_dim)
    actions = rng.uniform(spec.action_low, spec.action_high, shape).astype(np.float32)
    simulator.reset(episodes)
    yardstick: Callable[[Array], Callable[[], None]] | None = getattr(simulator, "bare_loop", None)
    bare = None if yardstick is None else yardstick(actions)

    def run() -> None:
        for chunk in actions:
            simulator.step(chunk, episodes)

    ours, theirs = list[float](), list[float]()
    began = time.perf_counter()
    while len(ours) <= MIN_ROUNDS or time.perf_counter() - began < seconds:
        first = len(ours) % 2 == 0
        if bare is not None and first:
            theirs.append(_timed(bare))
        simulator.reset(episodes)
        ours.append(_timed(run))
        if bare is not None and not first:
            theirs.append(_timed(bare))
    steps = chunks * CHUNK * num_envs
    per_second = [tuple(steps / seconds for seconds in times[1:]) for times in (ours, theirs)]  # the first warms up
    transport = 1 - simulator.busy / simulator.waited if isinstance(simulator, RemoteSimulator) else None
    return Throughput(num_envs, chunks, *per_second, transport=transport)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
