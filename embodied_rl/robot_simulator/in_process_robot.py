"""A simulated robot in this process, in lockstep over an in-process transport: every run has the same bits."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol, cast

import numpy as np

from embodied_rl.deployment.execution.operator_input import enter_dead_zone
from embodied_rl.deployment.execution.tick import Mode
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import ServoedRobot
from embodied_rl.interfaces.sim import Operated
from embodied_rl.robot_simulator.scripted_human import HumanObservation, HumanSettings, ScriptedHuman
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig, make_simulator_node
from embodied_rl.simulated_robot.checks import build_servoed_robot
from embodied_rl.simulated_robot.node import RobotSettings, SimulatedRobot

BEGIN_NS = 1_000_000_000
"""Start of the transport's clock; each reading advances it by one nanosecond."""
TEXT, JOY = "std_msgs/msg/String", "sensor_msgs/msg/Joy"


class InProcessRobot:
    """A simulated robot, and the transport over which it is reached.

    Attributes:
        servoed: the simulated robot. node: transport of the controller.

    Raises:
        UserError: the simulator cannot be controlled as this robot.
    """

    def __init__(self, config: RobotSimulatorConfig, robot: RobotDescription) -> None:
        bus = Bus(count(BEGIN_NS).__next__)
        self.servoed: ServoedRobot = build_servoed_robot(make_simulator_node(config))
        self._node = InProcessTransport(bus, "robot")
        self._robot = SimulatedRobot(self.servoed, robot, self._node, RobotSettings(lockstep=True))
        self.node = InProcessTransport(bus, "policy_bridge")

    def spin(self) -> None:
        """Process the messages for the robot, and publish its answers."""
        self._node.spin_once()

    def close(self) -> None:
        """Release the simulator."""
        self._robot.close()
        self._node.close()


class WatchedRobot(ServoedRobot, Operated, Protocol):
    """A simulated robot with an expert, and the progress of its task, 0…1."""

    progress: float


class ScriptedJoystick:
    """A scripted human who observes the simulated scene and moves the robot's joystick.

    Args:
        servoed: the simulated robot; it has an expert and reports progress.
        robot: its description; operator.device has an axis or a place for each action entry.
        look: returns the core's clock and mode.

    Raises:
        UserError: the simulator or the joystick does not support this.
    """

    def __init__(
        self,
        servoed: ServoedRobot,
        robot: RobotDescription,
        node: Transport,
        look: Callable[[], tuple[float, Mode]],
        settings: HumanSettings,
    ) -> None:
        topics, device = robot.operator, robot.operator.device
        moved = {use.entry for use in device.axes} | {place.entry for place in device.places}
        if not hasattr(servoed, "progress"):
            message = "sim.human=scripted needs a simulator with an expert, which shows progress."
            raise UserError(message, code="human-unsupported")
        if topics.teleop_type != JOY or not topics.label or moved != {entry.name for entry in robot.actions}:
            raise UserError(
                f"sim.human=scripted: the file of {robot.name} needs operator.label, and a joystick that moves every "
                "entry of the action (operator.device).",
                code="human-unsupported",
            )
        self._servoed = cast("WatchedRobot", servoed)
        self._advise = self._servoed.expert()
        self._robot, self._node, self._look = robot, node, look
        self.human = ScriptedHuman(settings, [entry.kind for entry in robot.actions], robot.control_hz)
        self._joy = node.create_publisher(topics.teleop, JOY, "sensor_data")
        self._label = node.create_publisher(topics.label, TEXT, "command")

    def begin(self) -> None:
        """Start a new episode with a released joystick."""
        self.human.begin()
        self._send(np.zeros(len(self._robot.actions)), touched=False)

    def update(self) -> None:
        """Observe the robot, and publish the human's inputs."""
        now, mode = self._look()
        outcome = self._servoed.outcome
        ended = "" if outcome is None else "success" if outcome.success else "failure"
        said = self.human.act(HumanObservation(now, mode, self._servoed.progress, lambda: self._advise()[0], ended))
        released = np.zeros(len(self._robot.actions))
        self._send(released if said.teleop is None else said.teleop, touched=said.teleop is not None)
        if said.label:
            self._label.publish(self._node.messages.make(TEXT, data=said.label))

    def _send(self, wanted: Sequence[float] | Any, touched: bool) -> None:
        device = self._robot.operator.device
        wish = dict(zip((entry.name for entry in self._robot.actions), wanted, strict=True))
        axes = np.zeros(1 + max((int(use.axis) for use in device.axes), default=-1), np.float32)
        buttons = np.zeros(1 + max(device.list_buttons().values(), default=-1), np.int32)
        for use in device.axes:
            axes[int(use.axis)] = np.clip(enter_dead_zone(use, wish[use.entry] / use.scale), -1, 1)
        for entry in {place.entry for place in device.places} if touched else ():
            places = [place for place in device.places if place.entry == entry]
            nearest = min(places, key=lambda place: abs(place.value - wish[entry]))
            buttons[nearest.button] = 1
        self._joy.publish(self._node.messages.make(JOY, axes=axes, buttons=buttons))
