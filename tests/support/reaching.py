"""A plug-in simulator that random actions sometimes solve, and that can be told to go wrong in one episode."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from embodied_rl.interfaces.sim import Array, Camera, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.interfaces.trust import Text
from embodied_rl.testing.fake_simulator import FakeSimulator

SIMS = {"reaching": "tests.support.reaching:Reaching"}
ALGORITHMS = {"waiting": "tests.support.waiting:Waiting"}
SIZE = 16


@dataclass(frozen=True)
class ReachingConfig(FakeSimulator.Config):
    """Settings."""

    horizon: int = 6
    nan_episode: int = -1
    """the training episode whose state becomes NaN after its first chunk; -1 for none."""
    shades: int = 1
    """grey levels of the picture's background; it says nothing."""
    gate: Text = ""
    """a file that must be there before the simulator is built; "" for none."""
    marks: Text = ""
    """a folder where each process writes a line before and after every chunk of training; "" for none."""
    hold: int = 0
    """in which of its chunks of training, counted from 1, a process waits until `marks` holds "go"; 0 for none."""


def wait_for(file: Path) -> None:
    """Until it is there."""
    while not file.exists():
        time.sleep(0.01)


class Reaching(FakeSimulator):
    """The points of `FakeSimulator`, seen in pictures of a size that networks take."""

    Config = ReachingConfig

    def __init__(self, config: ReachingConfig, num_envs: int) -> None:
        while config.gate and not Path(config.gate).exists():
            print("waiting for a licence", flush=True)
            time.sleep(0.1)
        if config.marks:
            print(f"{num_envs} environments are ready", flush=True)
        super().__init__(num_envs, config)
        self._episode: list[Episode | None] = [None] * num_envs
        self._chunks = 0

    @staticmethod
    def spec_of(config: ReachingConfig) -> SimulatorSpec:
        return replace(FakeSimulator.spec_of(config), cameras=(Camera("top", SIZE, SIZE),))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        """The highest bits of a seed say what an episode is for; 0 is training."""
        ran = list(self._episode)
        training = any(episode is not None and episode.seed >> 61 == 0 for episode in ran)
        self._chunks += training
        if training:
            self._mark("begin")
        if training and self._chunks == self.config.hold:
            wait_for(Path(self.config.marks, "go"))
        result = super().step(actions, next_episodes)
        if training:
            self._mark("end")
        for row, episode in enumerate(ran):
            if episode is not None and episode.split == "train" and episode.index == self.config.nan_episode >= 0:
                result.observation.state[row] = np.nan
        return result

    def _mark(self, what: str) -> None:
        if self.config.marks:
            with Path(self.config.marks, str(os.getpid())).open("a") as file:
                file.write(f"{what}\n")

    def _start(self, row: int, episode: Episode | None) -> None:
        super()._start(row, episode)
        self._episode[row] = episode

    def _observe(self) -> Observation:
        observation = super()._observe()
        images = {name: image.repeat(2, axis=1).repeat(2, axis=2) for name, image in observation.images.items()}
        return replace(observation, images=images)
