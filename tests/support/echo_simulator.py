"""A simulator that says which episode and which of its chunks it executed; worker processes import it. NumPy only."""

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, Source, StepResult, Task

HORIZON = 12
SPEC = SimulatorSpec(
    cameras=(),
    state_names=("episode", "chunks"),
    action_names=("episode", "decision"),
    action_low=(0.0, 0.0),
    action_high=(1e6, 1e6),
    control_hz=10.0,
    horizon=HORIZON,
    tasks=(Task("echo", "echo"),),
)


def code(episode: Array, chunk: Array) -> Array:
    """Both in one number, which float32 holds exactly; never 0."""
    return episode * 16 + chunk + 1


@dataclass(frozen=True)
class EchoConfig:
    """Settings."""

    death: float = 0.0
    """share of chunks in which it kills its own process."""
    delay: float = 0.0
    """seconds that a chunk takes at most."""
    seed: int = 0
    """of both."""


class EchoSimulator:
    """n environments; the reward of every step is the `code` of what was executed, or -1 where that was not asked for.

    Episodes take 1 to 12 steps, by their seed; half of those that are shorter than the limit end by it all the same.
    State: the episode, and how many of its chunks are done.
    """

    spec = SPEC

    def __init__(self, num_envs: int, config: EchoConfig | None = None):
        self.config = config or EchoConfig()
        self._episodes: list[Episode | None] = [None] * num_envs
        self._chunks, self._left = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        for row, episode in enumerate(episodes):
            self._start(row, episode)
        return self._observe()

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        early, late = self._whims()
        if early:
            os.kill(os.getpid(), signal.SIGKILL)
        (n, chunk), mine = actions.shape[:2], self._observe().state
        steps = np.minimum(chunk, self._left)
        right = (actions == mine[:, None]).all(axis=2)
        reward = np.where(right, code(*mine.T)[:, None], -1.0).astype(np.float32)
        self._left, self._chunks = self._left - steps, self._chunks + (steps > 0)
        ended = np.flatnonzero((self._left == 0) & (steps > 0))
        truncated = np.zeros(n, bool)
        truncated[ended] = [self._episodes[row].seed % 2 for row in ended]  # type: ignore[union-attr]
        terminated = np.isin(np.arange(n), ended) & ~truncated
        final = self._observe().select(ended) if len(ended) else None
        for row in ended:
            self._start(row, next_episodes[row])
        if late:
            os.kill(os.getpid(), signal.SIGKILL)
        source = np.full((n, chunk), Source.POLICY, np.uint8)
        flags = {"success": np.zeros((n, chunk), bool), "terminated": terminated, "truncated": truncated}
        return StepResult(
            reward, steps=steps, executed=actions, source=source, observation=self._observe(), ended=ended,
            final_observation=final, **flags,
        )  # fmt: skip

    def close(self) -> None:
        """Nothing to release."""

    def _start(self, row: int, episode: Episode | None) -> None:
        self._episodes[row], self._chunks[row] = episode, 0
        self._left[row] = 0 if episode is None else 1 + episode.seed // 2 % HORIZON

    def _observe(self) -> Observation:
        index = [-1 if episode is None else episode.index for episode in self._episodes]
        return Observation({}, np.stack([np.array(index), self._chunks], 1).astype(np.float32), ("echo",) * len(index))

    def _whims(self) -> tuple[bool, bool]:
        """Sleep, and whether to die before or after the chunk: by what runs, so that a new worker need not die, too."""
        if not self.config.death and not self.config.delay:
            return False, False
        draw = random.Random(f"{self.config.seed} {self._observe().state.tolist()}")
        time.sleep(draw.random() * self.config.delay)
        return draw.random() < self.config.death / 2, draw.random() < self.config.death / 2
