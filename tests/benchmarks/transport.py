"""Measure the cost of a step's way to a simulator process and back, with a simulator that does nothing."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Camera, Episode, Observation, SimulatorSpec, Source, StepResult, Task
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.local import ProcessHandle
from tests.benchmarks.settings import BenchmarkConfig
from tests.benchmarks.sleeping_stages import EXECUTED

STEPS = 200
"""Of which the median counts."""


@dataclass(frozen=True)
class Load:
    """The data of a step: n environments, with pictures of a given size from several cameras."""

    envs: int
    cameras: int
    size: int


LOADS = (Load(32, 1, 64), Load(1, 2, 224), Load(32, 2, 224))


class StillSimulator:
    """A simulator that returns the same pictures at every step and needs no time."""

    Config = Load

    def __init__(self, config: Load, num_envs: int) -> None:
        self.spec = self.spec_of(config)
        shape = (num_envs, config.size, config.size, 3)
        images = {camera.name: np.zeros(shape, np.uint8) for camera in self.spec.cameras}
        self._observation = Observation(images, np.zeros((num_envs, 8), np.float32), ("wait",) * num_envs)
        self._no, self._some = np.zeros(num_envs, bool), np.full(num_envs, EXECUTED)

    @staticmethod
    def spec_of(config: Load) -> SimulatorSpec:
        names = [f"camera_{number}" for number in range(config.cameras)]
        return SimulatorSpec(
            cameras=tuple(Camera(name, config.size, config.size) for name in names),
            state_names=tuple("abcdefgh"),
            action_names=("x", "y"),
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            control_hz=10.0,
            horizon=10**9,
            tasks=(Task("wait", "wait"),),
        )

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        return self._observation

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        n, chunk = actions.shape[:2]
        return StepResult(
            reward=np.zeros((n, chunk), np.float32),
            success=np.zeros((n, chunk), bool),
            steps=self._some,
            executed=actions,
            source=np.full((n, chunk), Source.POLICY, np.uint8),
            terminated=self._no,
            truncated=self._no,
            observation=self._observation,
            ended=np.zeros(0, np.int64),
            final_observation=None,
        )

    def close(self) -> None:
        """Do nothing: this simulator holds no resources."""


@dataclass(frozen=True)
class TransportTimes:
    """Median seconds of a step.

    Attributes:
        load: data that the step carries.
        signal: round trip without the worker's own time: the cost of pipe, operating system and messages.
        whole: round trip including the copy of the pictures into shared memory.
        pickled: round trip of the same data through a plain pipe of `multiprocessing`, everything pickled.
        ray: round trip of the same data as a call of a Ray actor, results in Ray's object store.
    """

    load: Load
    signal: float
    whole: float
    pickled: float
    ray: float


def measure_transport(load: Load, steps: int = STEPS) -> TransportTimes:
    """Measure a step's transport through a handle, through a plain pipe and to a Ray actor, in the same run."""
    spec = StillSimulator.spec_of(load)
    episodes = [EpisodeSampler(spec, 0).episode(index) for index in range(load.envs)]
    actions = np.zeros((load.envs, EXECUTED, 2), np.float32)
    factory = f"{__name__}:{StillSimulator.__name__}"
    with ProcessHandle(factory, {"config": load, "num_envs": load.envs}, name="still simulator") as handle:
        handle.submit("reset", episodes).result()
        whole, signal = list[float](), list[float]()
        for _ in range(steps):
            began = time.perf_counter()
            future = handle.submit("step", actions, episodes)
            future.result()
            whole.append(time.perf_counter() - began)
            signal.append(whole[-1] - future.seconds)
    pickled, actor = (measure(load, actions, episodes, steps) for measure in (measure_plain_pipe, measure_ray_actor))
    return TransportTimes(load, statistics.median(signal), statistics.median(whole), pickled, actor)


def measure_plain_pipe(load: Load, actions: Array, episodes: list[Episode], steps: int) -> float:
    """Measure the median seconds of the same step through a plain pipe of `multiprocessing`."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, load), daemon=True)
    process.start()
    seconds = list[float]()
    try:
        for _ in range(max(8, steps // 8)):
            began = time.perf_counter()
            ours.send((actions, episodes))
            if not ours.poll(60.0):
                raise TimeoutError("the plain pipe gave no answer within 60 s")
            ours.recv()
            seconds.append(time.perf_counter() - began)
    finally:
        process.kill()
        process.join(10.0)
    return statistics.median(seconds)


def measure_ray_actor(load: Load, actions: Array, episodes: list[Episode], steps: int) -> float:
    """Measure the median seconds of the same step as a call of an actor on a Ray node of this machine."""
    import ray

    ray.init(num_cpus=1, object_store_memory=256 << 20, include_dashboard=False, log_to_driver=False)
    seconds = list[float]()
    try:
        actor = ray.remote(StillSimulator).remote(load, load.envs)
        for _ in range(max(8, steps // 8)):
            began = time.perf_counter()
            ray.get(actor.step.remote(actions, episodes), timeout=60.0)
            seconds.append(time.perf_counter() - began)
    finally:
        ray.shutdown()
    return statistics.median(seconds)


def _serve(connection: Connection, load: Load) -> None:
    simulator = StillSimulator(load, load.envs)
    while True:
        connection.send(simulator.step(*connection.recv()))


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure all loads; the configuration has no effect."""
    return {"loads": [asdict(measure_transport(load)) for load in LOADS]}
