"""What the servo of a robot does in each of its steps, in real time: obey, hold still, or stop by itself."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.simulated_robot.command_check import CommandCheck
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import ServoedRobot

Command = NDArray[np.float64]


class Drive:
    """The commands that came, and what becomes of them. Times are in seconds of one monotonic clock.

    Before the first command that moves the robot it holds still, and the episode's time does not count. Without a
    command for `timeout_s`, or while the emergency stop is pressed, the robot stops by itself. After the stop was
    released it obeys again from the first command on that is at rest: what was on its way must not move it.

    Args:
        check: which commands are taken.
        timeout_s: without a command.

    Attributes:
        delay_s: seconds until a command takes effect.
        stopped: the emergency stop is pressed, or was, and nothing at rest was commanded since.
        silent: whoever commanded the robot has not done so for `timeout_s`.
        why: why the robot stops by itself, in words; empty while it does not.
    """

    def __init__(self, check: CommandCheck, timeout_s: float) -> None:
        self._check, self.timeout_s, self.delay_s = check, timeout_s, 0.0
        self.pressed = self.stopped = False
        self.why = ""
        self.begin()

    def begin(self) -> None:
        """Forget all commands, as a new episode begins."""
        self._waiting: deque[tuple[float, Command]] = deque()
        self._first: Command | None = None
        self._last: tuple[float, Command] | None = None
        self.stopped, self.silent = self.pressed, False

    def take(self, command: Command, now: float) -> None:
        """Take a command that came.

        Raises:
            UserError: the emergency stop forbids it.
        """
        self.allow(command)
        self._waiting.append((now + self.delay_s, command))

    def allow(self, command: Command) -> None:
        """Check that the emergency stop allows a command; one at rest ends what is left of a stop that was released.

        Raises:
            UserError: it forbids it.
        """
        if self.pressed:
            raise UserError("the emergency stop is pressed")
        if self.stopped and not self._check.rests(command):
            raise UserError("after an emergency stop the first command must be at rest")
        self.stopped = False

    def press(self, pressed: bool) -> None:
        """Press or release the emergency stop."""
        self.pressed = pressed
        self.stopped |= pressed
        if pressed:
            self._waiting.clear()

    def step(self, robot: ServoedRobot, now: float) -> None:
        """Make one step of the servo."""
        while self._waiting and self._waiting[0][0] <= now:
            self._apply(*self._waiting.popleft())
        self.silent = self._last is not None and now - self._last[0] > self.timeout_s
        self.why = self._find_reason()
        if self.why:
            robot.brake()
        else:
            robot.servo(None if self._last is None else self._last[1])

    def _apply(self, due: float, command: Command) -> None:
        self._first = command if self._first is None else self._first
        if self._last is not None or not self._rests_from_start(command):
            self._last = (due, command)

    def _rests_from_start(self, command: Command) -> bool:
        """Whether a command asks for nothing yet: no speed, and a gripper, say, as it was first."""
        assert self._first is not None
        same = bool((command == self._first)[~self._check.speeds].all())
        return bool(self._check.speeds.any()) and self._check.rests(command) and same

    def _find_reason(self) -> str:
        if self.stopped:
            return "the emergency stop is pressed" if self.pressed else "the emergency stop was pressed"
        if self.silent:
            return f"no command for {self.timeout_s * 1e3:.0f} ms"
        return ""
