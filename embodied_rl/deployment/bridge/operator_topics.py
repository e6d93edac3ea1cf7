"""What the operator does, as it arrives over topics: emergency stop, dead man's switch, teleoperation, labels."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.bridge.said_times import SaidTimes
from embodied_rl.deployment.execution.operator_input import OperatorInputParser
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.emergency_stop import STOP_QOS, EmergencyStopState
from embodied_rl.deployment.transport.interface import Subscription, Transport

BOOL, TEXT, TWIST = "std_msgs/msg/Bool", "std_msgs/msg/String", "geometry_msgs/msg/Twist"


class OperatorListener:
    """Listens to the operator's topics. Callbacks and the control loop may be two threads.

    What lets a robot move counts from when it was said (`SaidTimes`), and only if its stamp is new. What stops it
    counts whenever it comes: an emergency stop, a dead man's switch that is let go of.

    Args:
        node: the transport. robot: its description.
        clock: seconds, the core's.
        timed: that clock runs as clocks do; in lockstep, where it does not, messages count from their arrival.
    """

    def __init__(
        self, node: Transport, robot: RobotDescription, clock: Callable[[], float], *, timed: bool = True
    ) -> None:
        topics = robot.operator
        self.desk, self._clock = OperatorInputParser(topics.device, robot.entry_limits), clock
        self._lock, self._held_for_s = threading.Lock(), topics.deadman_timeout_s
        self._asked: Mode | None = None
        self._topics, self._holders = topics, EmergencyStopState()
        self._stop: Subscription | None = None
        ages = {topics.deadman: topics.deadman_timeout_s, topics.teleop: topics.device.timeout_s}
        real = not robot.use_sim_time
        self._times = {name: SaidTimes(name, age, real) for name, age in ages.items() if name and timed}
        if topics.estop:
            self._stop = node.create_subscription(topics.estop, BOOL, STOP_QOS, self._call(self._note_estop))
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

    def count_presses(self, button: str) -> int:
        """Return how often a button of the device was pressed, whoever reads what it asks for."""
        with self._lock:
            return self.desk.presses[button]

    def holds(self) -> bool:
        """Return whether the dead man's switch is held at present."""
        with self._lock:
            held_s = self.desk.held_s
        return held_s is not None and self._clock() - held_s <= self._held_for_s

    @property
    def stopped(self) -> str:
        """In words, who has pressed the emergency stop on its topic; empty: nobody holds it."""
        return self._holders.describe(self._stop)

    @property
    def unheard(self) -> str:
        """In words, why an emergency stop that somebody publishes does not arrive here; empty: it does."""
        faults = () if self._stop is None else self._stop.find_mismatches()
        return f"{faults[0]}, so that this emergency stop is not heard" if faults else ""

    def _call(self, note: Callable[[Any, int], None]) -> Callable[[Any, int, int], None]:
        def call(message: Any, received_ns: int, source_ns: int) -> None:
            with self._lock:
                note(message, source_ns)

        return call

    def _find_time(self, topic: str, message: Any, source_ns: int) -> float | None:
        """Return when a message was said, by the core's clock; None: its stamp is not new."""
        now_s = self._clock()
        return self._times[topic].find(message, source_ns, now_s) if topic in self._times else now_s

    def _note_estop(self, message: Any, source_ns: int) -> None:
        self.desk.receive_estop(self._holders.update(self._stop, bool(message.data)))

    def _note_deadman(self, message: Any, source_ns: int) -> None:
        said_s = self._find_time(self._topics.deadman, message, source_ns)
        if said_s is not None or not message.data:
            self.desk.receive_deadman(bool(message.data), said_s or 0.0)

    def _note_label(self, message: Any, source_ns: int) -> None:
        self.desk.receive_label(str(message.data))

    def _note_joy(self, message: Any, source_ns: int) -> None:
        said_s, buttons = self._find_time(self._topics.teleop, message, source_ns), message.buttons.tolist()
        if said_s is None or self._clock() - said_s > self.desk.device.timeout_s:
            self.desk.receive_old_buttons(buttons)
        else:
            self.desk.receive_joy(message.axes.tolist(), buttons, said_s)

    def _note_twist(self, message: Any, source_ns: int) -> None:
        said_s = self._find_time(self._topics.teleop, message, source_ns)
        linear, angular = ((part.x, part.y, part.z) for part in (message.linear, message.angular))
        if said_s is not None:
            self.desk.receive_twist(linear, angular, said_s)
