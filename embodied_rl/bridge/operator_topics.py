"""What the operator does, as it arrives over topics: emergency stop, dead man's switch, teleoperation, labels."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.operator_desk import OperatorDesk
from embodied_rl.deployment.tick import Mode, OperatorInput
from embodied_rl.robots.description import RobotDescription
from embodied_rl.transport.interface import Transport

BOOL, TEXT, TWIST = "std_msgs/msg/Bool", "std_msgs/msg/String", "geometry_msgs/msg/Twist"


class OperatorListener:
    """Listens to the operator's topics. Callbacks and the control loop may be two threads.

    Args:
        node: the transport. robot: its description.
        clock: seconds, the core's.
    """

    def __init__(self, node: Transport, robot: RobotDescription, clock: Callable[[], float]) -> None:
        topics = robot.operator
        self.desk, self._clock = OperatorDesk(topics.device, robot.entry_limits), clock
        self._lock = threading.Lock()
        self._asked: Mode | None = None
        self._estop = False
        if topics.estop:
            node.create_subscription(topics.estop, BOOL, "latched", self._call(self._note_estop))
        if topics.deadman:
            node.create_subscription(topics.deadman, BOOL, "deadman", self._call(self._note_deadman))
        if topics.label:
            node.create_subscription(topics.label, TEXT, "command", self._call(self._note_label))
        if topics.teleop:
            note = self._note_twist if topics.teleop_type == TWIST else self._note_joy
            node.create_subscription(topics.teleop, topics.teleop_type, "sensor_data", self._call(note))

    def ask(self, mode: Mode | None) -> None:
        """Ask for a mode in the operator's place, until something else is asked for; None asks for nothing."""
        self._asked = mode

    def read(self, mode: Mode, commanded: NDArray[np.float64]) -> OperatorInput:
        """Return what the operator does now, in `mode`, with `commanded` [A] the last command."""
        with self._lock:
            said = self.desk.read(self._clock(), mode, commanded)
        if said.wanted is None:
            return replace(said, wanted=self._asked)
        self._asked = None  # what was asked for in the operator's place is over: a takeover is not taken back by it
        return said

    @property
    def stopped(self) -> bool:
        """Whether the emergency stop is pressed."""
        return self._estop

    def _call(self, note: Callable[[Any], None]) -> Callable[[Any, int, int], None]:
        def call(message: Any, received_ns: int, source_ns: int) -> None:
            with self._lock:
                note(message)

        return call

    def _note_estop(self, message: Any) -> None:
        self._estop = bool(message.data)
        self.desk.receive_estop(self._estop)

    def _note_deadman(self, message: Any) -> None:
        self.desk.receive_deadman(bool(message.data), self._clock())

    def _note_label(self, message: Any) -> None:
        self.desk.receive_label(str(message.data))

    def _note_joy(self, message: Any) -> None:
        self.desk.receive_joy(message.axes.tolist(), message.buttons.tolist(), self._clock())

    def _note_twist(self, message: Any) -> None:
        linear, angular = ((part.x, part.y, part.z) for part in (message.linear, message.angular))
        self.desk.receive_twist(linear, angular, self._clock())
