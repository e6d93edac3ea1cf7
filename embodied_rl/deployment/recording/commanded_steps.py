"""Make control steps from the recorded commands of a robot without the bridge, at `control_hz`.

The observation of a step consists of the messages recorded before it. Its action is the last position or the mean
velocity commanded during the step, or the last command if there was none. A pause ends an episode. With several command
topics, steps begin once all positions have been commanded, and velocities without commands become 0.
"""

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.recording.steps import ControlStep, RecordedStep
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.sim import Source

PAUSE_S = 1.0
"""Seconds without a command that end an episode."""


class CommandedSteps:
    """Control steps made from commands. Their source is a human.

    Attributes:
        instruction: of the following steps.
        lost: number of control steps before all positions had been commanded.
    """

    def __init__(self, robot: RobotDescription) -> None:
        self.instruction, self.lost, self._waits_ns = "", 0, 0
        self._period_ns = round(1e9 / robot.control_hz)
        self._positions = np.array([entry.kind == "position" for entry in robot.entry_limits])
        self._scale = np.array([robot.control_hz if e.kind == "displacement" else 1.0 for e in robot.entry_limits])
        self._begin_ns = self._newest_ns = self._number = self._position = 0
        self._last: NDArray[np.float64] | None = None
        self._held, self._given_ns = np.full(len(self._scale), np.nan), np.zeros(len(self._scale), np.int64)
        self._new: list[NDArray[np.float64]] = []

    def add_command(self, command: NDArray[np.float64], time_ns: int) -> list[RecordedStep]:
        """Add a command, float64 [A] in SI units, NaN for entries of other topics; return the steps that have ended."""
        ended = self.pass_time(time_ns)
        given = ~np.isnan(command)
        self._given_ns[given] = time_ns
        stale = ~self._positions & (time_ns - self._given_ns > PAUSE_S * 1e9)
        self._held = np.where(given, command, np.where(stale, 0.0, self._held))
        self._newest_ns = max(time_ns, self._newest_ns)
        if np.isnan(self._held).any():
            self._waits_ns = self._waits_ns or time_ns
            return ended
        if self._waits_ns:
            self.lost, self._waits_ns = (time_ns - self._waits_ns) // self._period_ns, 0
        if self._last is None:
            self._begin_ns, self._number = time_ns, 0
        self._last = self._held
        self._new.append(command)
        return ended

    def pass_time(self, time_ns: int) -> list[RecordedStep]:
        """Return the steps that ended before this time; a pause ends their episode."""
        paused = time_ns - self._newest_ns > PAUSE_S * 1e9
        return self.finish() if paused else self._end_until(time_ns)

    def end_episode(self, time_ns: int) -> list[RecordedStep]:
        """End the episode at the time of a label; return its remaining steps."""
        return [*self.pass_time(time_ns), *self.finish()]

    def finish(self) -> list[RecordedStep]:
        """End the episode at the last command; return its remaining steps."""
        made = self._end_until(self._newest_ns)
        if self._last is not None and self._new:
            made.append(self._end_step(self._last))
        self._last = None
        return made

    def _end_until(self, time_ns: int) -> list[RecordedStep]:
        made: list[RecordedStep] = []
        while self._last is not None and self._begin_ns + self._period_ns <= time_ns:
            made.append(self._end_step(self._last))
        return made

    def _end_step(self, last: NDArray[np.float64]) -> RecordedStep:
        new = np.array(self._new or [last])
        given = np.isfinite(new).sum(axis=0)
        mean = np.where(given > 0, np.nansum(new, axis=0) / np.maximum(given, 1), last)
        action = tuple(map(float, np.where(self._positions, last, mean) / self._scale))
        control = ControlStep(
            self._begin_ns, -1, self._number, "teleop", Source.HUMAN, executed=action, command=tuple(map(float, last)),
            instruction=self.instruction,
        )  # fmt: skip
        step = RecordedStep(control, self._position, self._begin_ns + self._period_ns)
        self._number, self._position = self._number + 1, self._position + 1
        self._begin_ns += self._period_ns
        self._new.clear()
        return step
