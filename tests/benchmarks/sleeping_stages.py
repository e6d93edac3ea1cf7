"""A simulator and a policy that take a known time and move real data, for checks of the timing model."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.backbone import TensorSpec
from embodied_rl.interfaces.policy import Actor, Decision, Evaluation, NoiseKeys, Trace
from embodied_rl.interfaces.sim import Array, Camera, Episode, Observation, SimulatorSpec, Source, StepResult, Task

EXECUTED = 4
_ACTIONS = ("x", "y")


@dataclass(frozen=True)
class SleepingConfig:
    """Settings of the sleeping simulator."""

    fixed: float = 0.0
    """seconds that every chunk takes."""
    per_env: float = 0.0
    """further seconds that a chunk takes for each environment."""
    jitter: float = 0.0
    """σ of a log-normal factor of mean 1."""
    seed: int = 0
    """of the jitter."""
    image_size: int = 64
    """of the pictures, which are new for every observation."""
    horizon: int = 40
    """control steps of an episode; it ends at the limit."""


class SleepingSimulator:
    """n environments that sleep instead of simulating; implements `embodied_rl.interfaces.sim.Simulator`."""

    Config = SleepingConfig

    def __init__(self, config: SleepingConfig, num_envs: int) -> None:
        self.config, self.num_envs, self.spec = config, num_envs, self.spec_of(config)
        self._clock = np.zeros(num_envs, np.int64)
        self._parked = np.ones(num_envs, bool)
        self._draw = np.random.default_rng(config.seed)

    @staticmethod
    def spec_of(config: SleepingConfig) -> SimulatorSpec:
        return SimulatorSpec(
            cameras=(Camera("front", config.image_size, config.image_size),),
            state_names=("clock",),
            action_names=_ACTIONS,
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            control_hz=10.0,
            horizon=config.horizon,
            tasks=(Task("wait", "wait"),),
        )

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        self._clock[:] = 0
        self._parked[:] = [episode is None for episode in episodes]
        return self._observe(np.arange(self.num_envs))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        config, (n, chunk) = self.config, actions.shape[:2]
        factor = self._draw.lognormal(-(config.jitter**2) / 2, config.jitter) if config.jitter else 1.0
        until = time.perf_counter() + (config.fixed + config.per_env * n) * factor
        steps = np.where(self._parked, 0, np.minimum(chunk, config.horizon - self._clock))
        self._clock += steps
        late = self._clock >= config.horizon
        ended = np.flatnonzero(late)
        final = self._observe(ended) if len(ended) else None
        self._clock[late] = 0
        self._parked[late] = [next_episodes[int(row)] is None for row in ended]
        used = np.arange(chunk) < steps[:, None]
        result = StepResult(
            reward=np.zeros((n, chunk), np.float32),
            success=np.zeros((n, chunk), bool),
            steps=steps,
            executed=np.clip(actions, self.spec.action_low, self.spec.action_high).astype(np.float32),
            source=np.where(used, Source.POLICY, Source.HOLD).astype(np.uint8),
            terminated=np.zeros(n, bool),
            truncated=late,
            observation=self._observe(np.arange(n)),
            ended=ended,
            final_observation=final,
        )
        time.sleep(max(0.0, until - time.perf_counter()))
        return result

    def snapshot(self) -> dict[str, Array]:
        return {"clock": self._clock.copy(), "parked": self._parked.copy()}

    def restore(self, state: dict[str, Array]) -> Observation:
        self._clock[:], self._parked[:] = state["clock"], state["parked"]
        return self._observe(np.arange(self.num_envs))

    def close(self) -> None:
        """Do nothing: this simulator holds no resources."""

    def _observe(self, rows: Array) -> Observation:
        size, clock = self.config.image_size, self._clock[rows]
        pictures = np.empty((len(rows), size, size, 3), np.uint8)
        pictures[:] = (clock % 256)[:, None, None, None]
        return Observation({"front": pictures}, clock[:, None].astype(np.float32), ("wait",) * len(rows))


class SleepingActor(Actor):
    """A policy that returns zero actions after `fixed + per_env · n` seconds; its trace holds the pictures."""

    def __init__(self, spec: SimulatorSpec, fixed: float, per_env: float) -> None:
        super().__init__()
        self._spec, self._fixed, self._per_env = spec, fixed, per_env
        self._still = torch.nn.Parameter(torch.zeros(1))

    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: Array | None = None,
        committed: Array | None = None,
    ) -> Decision:
        n = len(observation)
        until = time.perf_counter() + self._fixed + self._per_env * n
        trace = {f"input/image/{name}": torch.from_numpy(image) for name, image in observation.images.items()}
        decision = Decision(
            actions=np.zeros((n, EXECUTED, len(_ACTIONS)), np.float32),
            trace=trace,
            log_prob=torch.zeros(n, EXECUTED, len(_ACTIONS)),
            value=torch.zeros(n),
            version=torch.full((n,), self.version, dtype=torch.int64),
        )
        time.sleep(max(0.0, until - time.perf_counter()))
        return decision

    def value(
        self,
        observation: Observation,
        keys: NoiseKeys,
        prefix: Array | None = None,
        committed: Array | None = None,
    ) -> Tensor:
        return torch.zeros(len(observation))

    def evaluate(self, trace: Trace) -> Evaluation:
        n = len(next(iter(trace.values())))
        nothing = torch.zeros(n, EXECUTED, len(_ACTIONS))
        return Evaluation(nothing, nothing, torch.zeros(n))

    def trace_spec(self) -> TensorSpec:
        size = {f"input/image/{camera.name}": camera for camera in self._spec.cameras}
        return {name: ((camera.height, camera.width, 3), torch.uint8) for name, camera in size.items()}

    def log_prob_shape(self) -> tuple[int, ...]:
        return EXECUTED, len(_ACTIONS)

    def parameter_groups(self) -> Mapping[str, list[Any]]:
        return {"actor": [self._still]}
