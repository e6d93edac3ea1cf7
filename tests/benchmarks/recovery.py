"""Measure how long a killed simulator process is missing: from the kill during a chunk to its first new picture."""

import os
import signal
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.handle import WorkerDied, restart_and_reset
from embodied_rl.runtime.processes.local import ProcessHandle
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import Plan
from tests.benchmarks.settings import BenchmarkConfig

KILLS = 3
"""As many as the budget of restarts allows within an hour."""


@dataclass(frozen=True)
class SimulatorRecovery:
    """Median seconds over some kills.

    Attributes:
        noticed: from the kill until the caller that waits for the chunk notices it.
        recovered: from the kill until the new process has started its episodes and returns their observation.
        envs: environments of the process; their episodes are lost.
        kills: number of measured kills.
    """

    noticed: float
    recovered: float
    envs: int
    kills: int


def measure_recovery(kind: SimulatorKind, envs: int, kills: int = KILLS) -> SimulatorRecovery:
    """Kill a simulator's process `kills` times, each time while it executes a long chunk.

    Raises:
        RuntimeError: a chunk finished before its process was killed.
    """
    sampler, noticed, recovered = EpisodeSampler(kind.spec, 0), list[float](), list[float]()
    episodes = [sampler.episode(index) for index in range(envs)]
    still = np.zeros((envs, 1, len(kind.spec.action_names)), np.float32)
    handle = kind.worker(envs, "simulator", Plan())
    assert isinstance(handle, ProcessHandle), "only a process can be killed"
    with handle:
        handle.submit("reset", episodes).result()
        for _ in range(kills):
            handle.submit("step", still, episodes).result()  # a call that succeeds, so that the next restart is a first
            future = handle.submit("step", still.repeat(50, axis=1), episodes)
            began = time.perf_counter()
            os.kill(handle.pid, signal.SIGKILL)
            try:
                future.result()
            except WorkerDied:
                noticed.append(time.perf_counter() - began)
            else:
                raise RuntimeError("the chunk was over before the process was killed")
            restart_and_reset(handle, episodes)
            recovered.append(time.perf_counter() - began)
    return SimulatorRecovery(statistics.median(noticed), statistics.median(recovered), envs, kills)


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure the configured simulator, with a quarter of its environments."""
    return asdict(measure_recovery(SimulatorKind.find(config.sim), max(1, config.sim.num_envs // 4)))
