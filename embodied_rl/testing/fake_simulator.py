"""Very small simulators: points on a plane that should reach a side. NumPy only.

Everything follows from `Episode.seed` and the actions, so that any two runs can be compared bit for bit.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_rl.interfaces.sim import (
    Array,
    Camera,
    Episode,
    NotFinite,
    Observation,
    SimulatorSpec,
    Source,
    StepResult,
    Task,
)

SPEED = 0.2
GOAL = 0.8
SIZE = 8


class FakeSimulator:
    """n points in the plane. "go left" and "go right" ask for x ≤ -0.8 and x ≥ 0.8.

    An action is a velocity, two numbers in [-1, 1]; the point moves by 0.2 of it, plus a drift that the episode's seed
    fixes. The reward is 1 on the step that reaches the goal, which ends the episode. State: position and the last
    step's x; privileged: the goal's x and the drift. The 8×8 camera shows the point as a bright pixel.
    """

    @dataclass(frozen=True)
    class Config:
        """Settings; the last four make it misbehave in a chosen way."""

        horizon: int = 20
        """control steps after which an episode is truncated."""
        success_after: int | None = None
        """the goal counts as reached after this many steps, wherever the point is."""
        seconds: float = 0.0
        """time that one control step of the whole slice takes."""
        fault: str = ""
        """"", or what goes wrong, once in its life: "nan state", "nan reward", "physics", "raise", "crash" (by SIGKILL)
        or "hang"."""
        fault_call: int = 0
        """in which call of `step` it goes wrong, counted from 0."""
        fault_row: int = 0
        """in which environment."""

    def __init__(self, num_envs: int, config: Config | None = None):
        self.config = config or self.Config()
        self.spec = self.spec_of(self.config)
        self.num_envs = num_envs
        self._calls = 0
        self._parked = np.ones(num_envs, bool)
        self._task = np.zeros(num_envs, np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._position = np.zeros((num_envs, 2), np.float32)
        self._last_x = np.zeros(num_envs, np.float32)
        self._drift = np.zeros((num_envs, 2), np.float32)

    @staticmethod
    def spec_of(config: Config) -> SimulatorSpec:
        return SimulatorSpec(
            cameras=(Camera("top", SIZE, SIZE),),
            state_names=("x", "y", "last_x"),
            action_names=("velocity_x", "velocity_y"),
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            control_hz=10.0,
            horizon=config.horizon,
            tasks=(Task("left", "go"), Task("right", "go")),
            words=("go", "left", "right"),
            privileged_names=("goal_x", "drift_x", "drift_y"),
            can_snapshot=True,
            can_replay=True,
            hold=(0.0, 0.0),
        )

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        for row, episode in enumerate(episodes):
            self._start(row, episode)
        return self._observe()

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        executed = np.clip(actions, self.spec.action_low, self.spec.action_high).astype(np.float32)
        shape = executed.shape[:2]
        result = StepResult(
            reward=np.zeros(shape, np.float32),
            success=np.zeros(shape, bool),
            steps=np.zeros(shape[0], np.int64),
            executed=executed,
            source=np.full(shape, Source.HOLD, np.uint8),
            terminated=np.zeros(shape[0], bool),
            truncated=np.zeros(shape[0], bool),
            observation=Observation({}, np.zeros(0), ()),
        )
        running = ~self._parked
        for j in range(actions.shape[1]):
            if self.config.seconds:
                time.sleep(self.config.seconds)
            self._advance(running, executed[:, j])
            result.steps += running
            result.source[running, j] = Source.POLICY
            result.success[:, j] = running & self._at_goal()
            result.reward[:, j] = result.success[:, j]
            result.terminated |= result.success[:, j]
            result.truncated |= running & (self._steps >= self.spec.horizon) & ~result.terminated
            running = running & ~result.terminated & ~result.truncated
        result.ended = np.flatnonzero(result.terminated | result.truncated)
        if len(result.ended):
            result.final_observation = self._observe().select(result.ended)
        for row in result.ended:
            self._start(row, next_episodes[row])
        result.observation = self._observe()
        self._calls += 1
        self._misbehave(result)
        return result

    def snapshot(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: dict[str, Array]) -> Observation:
        for name, array in self._arrays().items():
            array[:] = state[name]
        return self._observe()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _arrays(self) -> dict[str, Array]:
        return {
            "parked": self._parked,
            "task": self._task,
            "steps": self._steps,
            "position": self._position,
            "last_x": self._last_x,
            "drift": self._drift,
        }

    def _start(self, row: int, episode: Episode | None) -> None:
        self._parked[row] = episode is None
        if episode is None:
            return
        random = np.random.default_rng(episode.seed)
        self._task[row], self._steps[row] = episode.task, 0
        self._position[row] = random.uniform(-0.3, 0.3, 2)
        self._last_x[row] = self._position[row, 0]
        self._drift[row] = random.uniform(-0.02, 0.02, 2)
        for chunk in () if episode.history is None else episode.history:
            for action in chunk:
                self._advance(np.arange(self.num_envs) == row, np.broadcast_to(action, (self.num_envs, 2)))

    def _advance(self, running: Array, velocity: Array) -> None:
        self._last_x[running] = self._position[running, 0]
        self._position[running] += np.float32(SPEED) * velocity[running] + self._drift[running]
        self._steps += running

    def _at_goal(self) -> Array:
        if self.config.success_after is not None:
            return self._steps >= self.config.success_after
        return self._position[:, 0] * self._direction() >= GOAL

    def _direction(self) -> Array:
        return np.where(self._task == 1, np.float32(1), np.float32(-1))

    def _observe(self) -> Observation:
        images = np.zeros((self.num_envs, SIZE, SIZE, 3), np.uint8)
        column, line = np.clip((self._position.T + 1) * (SIZE / 2), 0, SIZE - 1).astype(np.int64)
        images[np.arange(self.num_envs), line, column] = 255
        return Observation(
            images={"top": images},
            state=np.column_stack([self._position, self._last_x]),
            instruction=tuple(f"go {self.spec.tasks[task].name}" for task in self._task),
            privileged=np.column_stack([GOAL * self._direction(), self._drift]).astype(np.float32),
        )

    def _misbehave(self, result: StepResult) -> None:
        if not self.config.fault or self._calls != self.config.fault_call + 1:
            return
        row = self.config.fault_row
        match self.config.fault:
            case "nan state":
                result.observation.state[row] = np.nan
            case "nan reward":
                result.reward[row, 0] = np.nan
            case "physics":
                raise NotFinite("the fake's physics came to nothing", row)
            case "raise":
                raise RuntimeError(f"the fake simulator was told to fail in environment {row}")
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case other:
                raise ValueError(f"unknown fault '{other}'")


class InterruptedSimulator(FakeSimulator):
    """A `FakeSimulator` whose episodes end as their index says: after 2 or 5 steps with success, or at the time limit.

    Its camera has 16×16 pixels. In some chunks the last step is a human's, or the first one the safety filter's.
    `shift` is added to what was executed in the steps of a source; without `succeeds` every episode fails.
    """

    def __init__(self, envs: int, shift: Mapping[Source, float] | None = None, succeeds: bool = True) -> None:
        super().__init__(envs, self.Config(horizon=8))
        self._shift, self._succeeds, self._due = shift or {}, succeeds, np.zeros(envs, np.int64)

    @staticmethod
    def spec_of(config: FakeSimulator.Config) -> SimulatorSpec:
        return replace(FakeSimulator.spec_of(config), cameras=(Camera("top", 16, 16),))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        result = super().step(actions, next_episodes)
        place = (self._calls + np.arange(self.num_envs)) % 4
        for source, column, when in ((Source.HUMAN, actions.shape[1] - 1, 1), (Source.SAFETY, 0, 3)):
            result.source[(place == when) & (result.steps > column), column] = source
        for source, shift in self._shift.items():
            result.executed[result.source == source] += np.float32(shift)
        return result

    def _start(self, row: int, episode: Episode | None) -> None:
        super()._start(row, episode)
        self._due[row] = 2 + 3 * (episode.index % 4) if episode and self._succeeds else 99

    def _at_goal(self) -> Array:
        return self._steps >= self._due

    def _observe(self) -> Observation:
        seen = super()._observe()
        return replace(seen, images={"top": seen.images["top"].repeat(2, axis=1).repeat(2, axis=2)})
