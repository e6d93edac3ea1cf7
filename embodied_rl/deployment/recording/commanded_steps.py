"""Makes control steps of a recording without the bridge: what was commanded, as actions, at `control_hz`.

A step's observation is what had been recorded when it began. Its action is the last position, or the mean of the
speeds, that was commanded until it ended; without a command in it, the last one holds. A pause ends an episode.
"""

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.recording.recorded_episode import RecordedStep
from embodied_rl.deployment.recording.steps import ControlStep
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.sim import Source

PAUSE_S = 1.0
"""Seconds without a command that end an episode."""


class CommandedSteps:
    """Makes control steps of one robot's commands. Their source is a human.

    Args:
        robot: its description.

    Attributes:
        instruction: words of the task for the steps that follow.
    """

    def __init__(self, robot: RobotDescription) -> None:
        self.instruction = ""
        self._period_ns = round(1e9 / robot.control_hz)
        self._positions = np.array([entry.kind == "position" for entry in robot.entry_limits])
        self._scale = np.array([robot.control_hz if e.kind == "displacement" else 1.0 for e in robot.entry_limits])
        self._begin_ns = self._newest_ns = self._number = self._position = 0
        self._last: NDArray[np.float64] | None = None
        self._new: list[NDArray[np.float64]] = []

    def note(self, command: NDArray[np.float64], time_ns: int) -> list[RecordedStep]:
        """Take a command, float64 [A] in SI units, that was recorded at this time; return the steps that have ended."""
        ended = self.pass_time(time_ns)
        if self._last is None:
            self._begin_ns, self._number = time_ns, 0
        self._last = command
        self._new.append(command)
        self._newest_ns = max(time_ns, self._newest_ns)
        return ended

    def pass_time(self, time_ns: int) -> list[RecordedStep]:
        """Return the steps that have ended until this time; a pause ends their episode."""
        paused = time_ns - self._newest_ns > PAUSE_S * 1e9
        return self.finish() if paused else self._end_until(time_ns)

    def end_episode(self, time_ns: int) -> list[RecordedStep]:
        """Return the steps up to this time, when a label was said; the next command begins an episode."""
        return [*self.pass_time(time_ns), *self.finish()]

    def finish(self) -> list[RecordedStep]:
        """Return the steps up to the last command; the next command begins an episode."""
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
        mean = np.mean(self._new, axis=0) if self._new else last
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
