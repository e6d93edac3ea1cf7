"""The loop in lockstep: a simulated robot waits for each command, so that nothing depends on time."""

import time
from collections.abc import Callable

from embodied_rl.deployment.bridge.controller import Controller
from embodied_rl.deployment.bridge.inbox import Inbox
from embodied_rl.deployment.execution.tick import State, Tick
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import RunFailed

LOOKING_S = 0.02


class LockstepClock:
    """A clock of the core that counts control steps, and one that says what the robot's stamps say."""

    def __init__(self, control_hz: float) -> None:
        self._period_s, self._steps, self.stamp = 1 / control_hz, 0, 0

    def read(self) -> float:
        """Return seconds."""
        return self._steps * self._period_s

    def read_source(self) -> int:
        """Return the robot's time in ns."""
        return self.stamp

    def advance(self) -> None:
        """Let a control step pass."""
        self._steps += 1


class LockstepLoop:
    """Answers each complete observation with one command.

    Args:
        controller: decides. inbox: what it observes. clock: its clock.
        publish: takes a tick that has a command.
        patience_s: in an episode, the robot answers a command within so long.
    """

    def __init__(
        self,
        controller: Controller,
        inbox: Inbox,
        clock: LockstepClock,
        publish: Callable[[Tick], None],
        patience_s: float,
    ) -> None:
        self._controller, self._inbox, self._clock = controller, inbox, clock
        self._publish, self._patience_s = publish, patience_s
        self._stamp: int | None = None
        self._since = time.monotonic()
        self.ticks = 0

    def step(self, node: Transport) -> bool:
        """Wait a moment for the next observation, and answer it; return whether a command was given.

        Raises:
            RunFailed: the robot does not answer.
        """
        node.spin_once()
        node.spin_until(lambda: self._controller.is_behind() or (self._acts() and self._is_due()), LOOKING_S)
        self._controller.follow_episodes()
        running = self._controller.core.state == State.ACTIVE
        if not running:
            self._since = time.monotonic()
        if not (self._acts() and self._is_due()):
            if running and time.monotonic() - self._since > self._patience_s:
                raise RunFailed(
                    f"The robot did not answer a command within {self._patience_s:g} s. In lockstep each command "
                    "brings one message on every topic; see whether the robot runs, with lockstep=true."
                )
            return False
        stamp = self._find_stamp()
        assert stamp is not None, "it is due"
        self._clock.stamp = stamp
        made = self._controller.tick()
        if made is None or made.command is None:
            return False
        self._stamp, self._since = stamp, time.monotonic()
        self._clock.advance()
        self.ticks += 1
        self._publish(made)
        return True

    def _acts(self) -> bool:
        return self._controller.pending or self._controller.core.state == State.ACTIVE

    def _is_due(self) -> bool:
        return self._find_stamp() is not None

    def _find_stamp(self) -> int | None:
        return self._inbox.find_set(self._stamp, self._controller.find_floor())
