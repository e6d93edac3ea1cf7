"""Control loop around the executor with a fake clock; each action holds its epoch and step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from embodied_rl.deployment.execution.executor import Executor, Hold
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest, RobotCommand
from embodied_rl.deployment.execution.settings import Settings

HORIZON = 8
WIDE = np.full(2, 1e6, np.float32)
STILL = Hold(np.array([-1, -1], np.float32), np.array([False, False]))


class Robot:
    """A control loop and its clock, of 1 Hz unless said; action [e, k] belongs to step k of epoch e."""

    def __init__(self, strategy: str = "naive", delay: int = 2, replan: int = 2, **others) -> None:
        made = Settings(HORIZON, -WIDE, WIDE, strategy, replan, delay, **others)  # type: ignore[arg-type]
        self.now, self.step = 0.0, 1 / made.control_hz
        self.executor = Executor(made, lambda: self.now, STILL)
        self.executor.begin()

    def answer(self, request: ChunkRequest, **changes) -> Chunk:
        steps = request.step + np.arange(HORIZON)
        actions = np.stack([np.full(HORIZON, request.epoch), steps], axis=1).astype(np.float32)
        return replace(Chunk(request.sequence, request.epoch, request.step, actions), **changes)

    def act(self, count: int = 1) -> list[RobotCommand]:
        made = []
        for _ in range(count):
            made.append(self.executor.act())
            self.now += self.step
        return made

    def start(self) -> ChunkRequest:
        """Get a plan of a whole chunk, after two steps of waiting; return the next request."""
        first = self.executor.request()
        assert first is not None
        self.act(2)
        assert self.executor.receive(self.answer(first)) is None
        following = self.executor.request()
        assert following is not None
        return following


def steps(commands: Sequence[RobotCommand]) -> list[int]:
    """The steps that actions belong to, by their content; -1 for holds."""
    assert all(each.action is not None for each in commands)
    return [int(each.action[1]) for each in commands if each.action is not None]
