"""Description of a robot, shared by recording, training, checks and deployment.

Quantities are SI. `A` action entries, `S` state entries.
"""

from dataclasses import dataclass, field
from typing import Literal

from embodied_rl.deployment.execution.limits import CommandLimits, EntryKind, EntryLimits
from embodied_rl.deployment.execution.operator_device import OperatorDevice
from embodied_rl.interfaces.robot import Body

CommandKind = Literal["forward", "trajectory", "twist", "pose", "gripper"]
Resize = Literal["none", "area", "bilinear", "nearest"]
Fit = Literal["same", "stretch", "crop"]
COMMAND_TYPES: dict[CommandKind, tuple[str, ...]] = {
    "forward": ("std_msgs/msg/Float64MultiArray",),
    "trajectory": ("trajectory_msgs/msg/JointTrajectory",),
    "twist": ("geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"),
    "pose": ("geometry_msgs/msg/PoseStamped",),
    "gripper": ("control_msgs/msg/GripperCommand",),
}
"""Message types of each kind of command; the first is the default."""


@dataclass(frozen=True)
class Term:
    """A number in a message of a topic of `RobotDescription.topics`, with the conversion factor to SI.

    Attributes:
        field: path to the number, such as pose.position.x, or position[elbow] for the entry of a joint by its name.
    """

    topic: str
    field: str
    scale: float = 1.0


@dataclass(frozen=True)
class StateEntry:
    """An entry of the state: the sum of its terms. Its unit is checked against the policy's."""

    name: str
    unit: str
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Topic:
    """A topic published by the robot.

    Attributes:
        name: its full name, such as /joint_states.
        type_name: such as sensor_msgs/msg/JointState.
        qos: the name of a profile (`embodied_rl.deployment.transport.qos.PROFILES`).
        max_age_s: messages are stale at this age, or if their content has not changed for this time.
        may_repeat: equal contents do not mean a dead sensor, such as noise-free joints at rest.
    """

    name: str
    type_name: str
    qos: str
    rate_hz: float
    max_age_s: float
    may_repeat: bool = False


@dataclass(frozen=True)
class CameraEntry:
    """A camera: the policy's picture, uint8 RGB [height, width, 3], and its topic.

    Attributes:
        topic: of its pictures; a key of `RobotDescription.topics`. info: of its CameraInfo, or empty.
        resize: method for pictures of another size; none refuses them, nearest samples pixels from edge to edge.
        fit: method for another aspect ratio: same refuses it, stretch distorts, crop cuts both sides.
    """

    name: str
    topic: str
    height: int
    width: int
    info: str = ""
    resize: Resize = "none"
    fit: Fit = "same"


@dataclass(frozen=True)
class ActionEntry:
    """An entry of an action.

    Attributes:
        name: the policy's name of it. kind: see `EntryLimits.kind`.
        action_low, action_high: range of the policy's output.
        measured: state entry that measures it; empty: none.
        target: field of the command: a joint name; linear.x … angular.z for a twist; position.x … orientation.yaw for
            a pose.
        keeps: while holding, the last command is repeated instead of 0, such as a gripper's.
        command: name of its topic in `RobotDescription.commands`; empty: the main command topic.
    """

    name: str
    unit: str
    kind: EntryKind
    action_low: float
    action_high: float
    measured: str
    target: str
    keeps: bool = False
    command: str = ""


@dataclass(frozen=True)
class CommandTopic:
    """A command topic.

    Attributes:
        type_name: one of `COMMAND_TYPES`.
        horizon_s: of a trajectory, time of its last point, at which the robot rests.
        frame: of a stamped command.
        order: for forward, the targets in the order of the message; empty: that of the actions.
        orientation: for a pose without orientation targets, the fixed quaternion x, y, z, w.
        timeout_s: time without commands after which the driver stops the robot; 0: unknown.
        max_effort: for a gripper, in N or Nm.
    """

    name: str
    kind: CommandKind
    type_name: str
    qos: str = "command"
    horizon_s: float = 0.1
    frame: str = ""
    timeout_s: float = 0.0
    order: tuple[str, ...] = ()
    orientation: tuple[float, ...] = ()
    max_effort: float = 0.0


@dataclass(frozen=True)
class OperatorTopics:
    """Topics of the operator; an empty name: not used.

    Attributes:
        estop: std_msgs/msg/Bool, latched; true stops.
        deadman: std_msgs/msg/Bool, true while held; released after `deadman_timeout_s` without a message.
        teleop: sensor_msgs/msg/Joy, or geometry_msgs/msg/Twist, by `teleop_type`.
        label: std_msgs/msg/String: success, failure or abort.
        reset: std_msgs/msg/String, JSON: requests the next episode of a simulated robot.
        outcome: std_msgs/msg/String, JSON: outcome of a simulated robot's episode.
        instruction: std_msgs/msg/String, latched: the task instruction.
        device: uses of the axes and buttons of `teleop`.
    """

    estop: str = ""
    deadman: str = ""
    deadman_timeout_s: float = 0.15
    teleop: str = ""
    teleop_type: str = "sensor_msgs/msg/Joy"
    label: str = ""
    reset: str = ""
    outcome: str = ""
    instruction: str = ""
    device: OperatorDevice = field(default_factory=OperatorDevice)


@dataclass(frozen=True)
class RobotDescription:
    """A robot.

    Attributes:
        name: of the robot. verified: text on the hardware or simulator it was tested on.
        control_hz: actions of a policy per second. command_hz: commands per second, a multiple of it.
        topics: by the short name that terms and cameras use.
        command: the main command topic. commands: further ones by name; each action uses one topic.
        limits: of the A entries, in their order.
        tracking_error: [A] largest difference of commanded and measured motion; `inf`: unlimited.
        jump: [A] largest difference between a chunk's first action and the last command, in the policy's units.
        use_sim_time: use the time of /clock.
        clocks_agree: stamps are of the bridge's clock (one machine, or synchronised by NTP or PTP), and late stamps are
            stale. Otherwise each publisher's clock is estimated, see `StreamGate`.
        silence_s: the plan is dropped if the policy has not answered for this time.
        probe: before the first motion each measured entry is moved a little and back, to check units, signs and order.
        open_loop_s: largest age of an action after its observation; in stop-and-infer, after the answer.
    """

    name: str
    verified: str
    control_hz: float
    command_hz: float
    topics: dict[str, Topic]
    cameras: tuple[CameraEntry, ...]
    state: tuple[StateEntry, ...]
    actions: tuple[ActionEntry, ...]
    command: CommandTopic
    limits: CommandLimits
    operator: OperatorTopics
    tracking_error: tuple[float, ...]
    jump: tuple[float, ...] | None
    use_sim_time: bool = False
    clocks_agree: bool = True
    silence_s: float = 1.0
    probe: bool = True
    open_loop_s: float = 1.0
    commands: dict[str, CommandTopic] = field(default_factory=dict[str, CommandTopic])

    @property
    def command_topics(self) -> dict[str, CommandTopic]:
        """All command topics by name; the main one has the empty name."""
        return {"": self.command, **self.commands}

    @staticmethod
    def name_command(name: str) -> str:
        """Return the key of a command topic in the robot's file, by its name in `command_topics`."""
        return f"commands.{name}" if name else "command"

    def list_commanded(self, name: str) -> list[int]:
        """Return the indices of the A entries of a command topic."""
        return [place for place, entry in enumerate(self.actions) if entry.command == name]

    @property
    def body(self) -> Body:
        """The body that a policy is checked against."""
        cameras = {camera.name: (camera.height, camera.width) for camera in self.cameras}
        return Body(
            cameras,
            tuple(entry.name for entry in self.state),
            tuple(entry.name for entry in self.actions),
            tuple(entry.action_low for entry in self.actions),
            tuple(entry.action_high for entry in self.actions),
            self.control_hz,
        )

    @property
    def entry_limits(self) -> tuple[EntryLimits, ...]:
        """Limits of the A entries, in their order."""
        return self.limits.entries
