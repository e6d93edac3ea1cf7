"""A one-decision task: point to the side that the instruction names. The best action is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.sim import Array, Camera, Episode, Observation, SimulatorSpec, Source, StepResult, Task

GOAL = 0.5
TOLERANCE = 0.2


class Pointing:
    """n environments; an episode is one control step. The reward is minus the squared error, times `sign`."""

    @dataclass(frozen=True)
    class Config:
        """sign: -1 for rewards that lead astray."""

        sign: float = 1.0

    def __init__(self, config: Config, num_envs: int) -> None:
        self.config, self.num_envs, self.spec = config, num_envs, self.spec_of(config)
        self._task = np.zeros(num_envs, np.int64)

    @staticmethod
    def spec_of(config: Config) -> SimulatorSpec:
        return SimulatorSpec(
            cameras=(Camera("front", 16, 16),),
            state_names=("nothing",),
            action_names=("side",),
            action_low=(-1.0,),
            action_high=(1.0,),
            control_hz=1,
            horizon=1,
            tasks=(Task("left", "point"), Task("right", "point")),
            words=("left", "right"),
            privileged_names=("goal",),
        )

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        for row, episode in enumerate(episodes):
            self._task[row] = 0 if episode is None else episode.task
        return self._observe()

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        count = len(actions)
        error = np.clip(actions[:, :, 0], -1, 1) - self._goal()[:, None]
        final = self._observe()
        self.reset(next_episodes)
        return StepResult(
            reward=(-self.config.sign * error**2).astype(np.float32),
            success=np.abs(error) < TOLERANCE,
            steps=np.ones(count, np.int64),
            executed=actions.astype(np.float32),
            source=np.full(actions.shape[:2], Source.POLICY, np.uint8),
            terminated=np.ones(count, bool),
            truncated=np.zeros(count, bool),
            observation=self._observe(),
            ended=np.arange(count),
            final_observation=final,
        )

    def close(self) -> None:
        """Nothing to release."""

    def _goal(self) -> Array:
        return np.where(self._task == 1, GOAL, -GOAL).astype(np.float32)

    def _observe(self) -> Observation:
        return Observation(
            images={"front": np.zeros((self.num_envs, 16, 16, 3), np.uint8)},
            state=np.zeros((self.num_envs, 1), np.float32),
            instruction=tuple(self.spec.tasks[task].name for task in self._task),
            privileged=self._goal()[:, None],
        )
