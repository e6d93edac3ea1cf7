"""What a robot is, for everything that meets it: recording, training, checking and deployment read the same file.

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


@dataclass(frozen=True)
class Term:
    """A number in a message, with its factor.

    Attributes:
        topic: where the message comes from; a key of `RobotDescription.topics`.
        field: path to a number, such as pose.position.x, or position[elbow] for the entry of a joint by its name.
        scale: factor that makes it SI.
    """

    topic: str
    field: str
    scale: float = 1.0


@dataclass(frozen=True)
class StateEntry:
    """An entry of the state: the sum of its terms. `unit` is said for readers and compared with a policy's."""

    name: str
    unit: str
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Topic:
    """A topic that the robot publishes.

    Attributes:
        name: its full name, such as /joint_states.
        type_name: such as sensor_msgs/msg/JointState.
        qos: the name of a profile (`embodied_rl.deployment.transport.qos.PROFILES`).
        rate_hz: messages per second that the robot promises.
        max_age_s: a message that is older, or whose content has not changed for so long, is stale.
        may_repeat: equal contents are no sign of a dead sensor, such as joints that stand still without noise.
    """

    name: str
    type_name: str
    qos: str
    rate_hz: float
    max_age_s: float
    may_repeat: bool = False


@dataclass(frozen=True)
class CameraEntry:
    """A camera: its picture as a policy sees it, uint8 RGB [height, width, 3], and the topic that it comes from.

    Attributes:
        topic: of its pictures; a key of `RobotDescription.topics`. info: of its CameraInfo, or empty.
        resize: how a picture of another size becomes this one; none refuses it, nearest takes pixels from edge to edge.
        fit: what happens to a picture of other proportions: same refuses it, stretch changes its proportions, crop
            cuts what is too much on both sides.
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
        name: as the policy calls it. unit: of its quantity, such as m.
        kind: see `EntryLimits.kind`.
        action_low, action_high: limits of the policy's number.
        measured: name of the state entry that measures its quantity; empty where nothing does.
        target: where the number goes in the command: a joint's name, or for a twist linear.x … angular.z, for a pose
            position.x … orientation.yaw.
        keeps: holding still repeats the last command instead of 0, such as a gripper's.
        command: name of the topic in `RobotDescription.commands` that carries it; empty: the main command topic.
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
    """Where commands go: forward is std_msgs/msg/Float64MultiArray, trajectory trajectory_msgs/msg/JointTrajectory,
    twist geometry_msgs/msg/Twist or TwistStamped, pose geometry_msgs/msg/PoseStamped, gripper
    control_msgs/msg/GripperCommand.

    Attributes:
        horizon_s: for a trajectory, how far ahead its last point lies, at which the robot rests.
        frame: of a stamped command.
        order: for forward, the targets in the order of the message; empty: that of the actions.
        orientation: for a pose without orientation.… among its targets, the fixed one: x, y, z, w.
        timeout_s: after so long without a command the robot stops by itself; 0: nobody says that it does.
        max_effort: for a gripper, the largest effort that each message allows, in N or Nm.
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
    """Topics of whoever watches the robot; an empty name: there is none.

    Attributes:
        estop: std_msgs/msg/Bool, latched; true stops.
        deadman: std_msgs/msg/Bool, true while held; its absence for `deadman_timeout_s` releases it.
        teleop: sensor_msgs/msg/Joy, or geometry_msgs/msg/Twist, by `teleop_type`.
        label: std_msgs/msg/String: success, failure or abort.
        reset: std_msgs/msg/String, JSON: asks a simulated robot for its next episode.
        outcome: std_msgs/msg/String, JSON: how a simulated robot's episode ended.
        instruction: std_msgs/msg/String, latched: the words of the task.
        device: what the axes and buttons of `teleop` do.
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
        name: of the robot. verified: in words, on what it has run; templates say that they never ran on hardware.
        control_hz: actions of a policy per second. command_hz: commands per second, a multiple of it.
        topics: by a short name, as terms and cameras use it.
        command: the main command topic. commands: further ones by name; each action is sent on one of them.
        limits: of the A entries, in their order.
        tracking_error: largest distance [A] between commanded and measured motion; `inf` for none.
        jump: [A] largest difference between a chunk's first action and the last command, in the policy's units.
        use_sim_time: time comes from /clock.
        clocks_agree: stamps are of the bridge's clock: one machine, or machines that NTP or PTP synchronises. Then what
            is late by its own stamps is stale. Else each publisher's clock is estimated, see `StreamGate`.
        silence_s: what is planned is dropped when the policy has not answered for so long.
        probe: each measured entry is moved a little and back before the robot moves for the first time, to compare
            units, signs and order.
        open_loop_s: no action is executed later than this after its observation; where the robot holds during each
            inference, after the answer.
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
        """Return all command topics by name; that of the main one is empty."""
        return {"": self.command, **self.commands}

    def list_commanded(self, name: str) -> list[int]:
        """Return which of the A entries a command topic carries."""
        return [place for place, entry in enumerate(self.actions) if entry.command == name]

    @property
    def body(self) -> Body:
        """Return the body that a policy is checked against."""
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
        """Return the limits of the A entries, in their order."""
        return self.limits.entries
