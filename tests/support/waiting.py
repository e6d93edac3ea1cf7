"""PPO that waits in the middle of an update, so that it can be disturbed there."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.trust import Text
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.training.algorithms.ppo import PPO, PPOConfig
from tests.support.reaching import wait_for


@dataclass(frozen=True)
class WaitingConfig(PPOConfig):
    """Settings."""

    marks: Text = ""
    """a folder where each process writes a file "updating-<its number>" when it begins to wait."""
    hold: int = 0
    """in which iteration, counted from 1, it waits until that folder holds a file "learn"; 0 for none."""


class Waiting(PPO):
    """It waits when the policy has learned, and the critic is to take its second step."""

    Config = WaitingConfig
    config: WaitingConfig

    def update(self, segments: Iterable[Rollout], iteration: int) -> dict[str, float]:
        if iteration + 1 != self.config.hold:
            return super().update(segments, iteration)
        step, steps = self.critic.step, 0

        def held(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 2:
                Path(self.config.marks, f"updating-{os.getpid()}").touch()
                wait_for(Path(self.config.marks, "learn"))
            return step(*args)

        self.critic.step = held
        try:
            return super().update(segments, iteration)
        finally:
            del self.critic.step
