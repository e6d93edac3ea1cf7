"""Reads a robot's YAML file, one of `configs/robot/` or a stranger's, and refuses what it does not understand."""

import math
from importlib import metadata
from pathlib import Path

from embodied_rl.config.freeze import freeze_config, suggest_name
from embodied_rl.deployment.execution.limits import CommandLimits, EntryLimits
from embodied_rl.deployment.robots.consistency import check_consistency, check_messages
from embodied_rl.deployment.robots.description import (
    ActionEntry,
    CameraEntry,
    CommandTopic,
    RobotDescription,
    StateEntry,
    Topic,
)
from embodied_rl.deployment.robots.robot_file import UNLIMITED, ActionKeys, CommandKeys, RobotKeys, StateKeys
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.robots.terms import parse_term
from embodied_rl.interfaces.errors import UserError

GROUP = "robot"
TYPES = {
    "forward": "std_msgs/msg/Float64MultiArray",
    "trajectory": "trajectory_msgs/msg/JointTrajectory",
    "twist": "geometry_msgs/msg/Twist",
    "pose": "geometry_msgs/msg/PoseStamped",
    "gripper": "control_msgs/msg/GripperCommand",
}
"""The usual message of each kind of command."""
LAG_S = 0.5
"""Seconds of motion at the largest speed by which a robot may be away from its command, where its file does not say."""


def load_robot(name: str | Path, config_dir: Path | None = None) -> RobotDescription:
    """Return the description of a robot.

    Args:
        name: of a file in `configs/robot/`, here, in another distribution or in `config_dir`; or a path of a YAML file,
            which may be a stranger's: it is plain data.
        config_dir: an extra folder of configurations, searched first.

    Raises:
        UserError: there is none, or the file says what is not understood or cannot be; the message names file and key.
    """
    return read_robot(find_robot_file(name, config_dir))


def find_robot_file(name: str | Path, config_dir: Path | None = None) -> Path:
    """Return the file of a robot.

    Raises:
        UserError: there is none of that name, and no such file.
    """
    from embodied_rl.config.option_files import find_option_file, list_options

    known = [option.name for option in list_options(GROUP, config_dir)]
    if str(name) in known:
        return find_option_file(GROUP, str(name), config_dir)
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"robot={name}: there is no such robot, and no such file.{suggest_name(str(name), known)}")
    return path


def read_robot(path: Path) -> RobotDescription:
    """Return the description that a file holds; see `load_robot`. Raises UserError."""
    keys = read_strict_yaml(path)
    try:
        robot = describe_robot(freeze_config(RobotKeys, keys))
        check_consistency(robot)
        if _can_decode():
            from embodied_rl.deployment.transport.messages import Messages

            check_messages(robot, Messages())
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return robot


def _can_decode() -> bool:
    """Whether the extra `ros2` is installed, which knows the types of messages."""
    try:
        metadata.version("rosbags")
    except metadata.PackageNotFoundError:
        return False
    return True


def describe_robot(keys: RobotKeys) -> RobotDescription:
    """Return the description that keys mean; `check_consistency` is not done. Raises UserError: a number is none."""
    jumps = tuple(_read_limit(each.jump, f"actions.{name}.jump") for name, each in keys.actions.items())
    return RobotDescription(
        name=keys.name,
        verified=keys.verified,
        control_hz=keys.control_hz,
        command_hz=keys.command_hz,
        topics={
            name: Topic(each.name, each.type, each.qos, each.rate_hz, each.max_age_s, each.may_repeat)
            for name, each in keys.topics.items()
        },
        cameras=tuple(
            CameraEntry(name, each.topic, each.height, each.width, each.info, each.resize, each.fit)
            for name, each in keys.cameras.items()
        ),
        state=tuple(_describe_state(name, each) for name, each in keys.state.items()),
        actions=tuple(_describe_action(name, each) for name, each in keys.actions.items()),
        command=_describe_command(keys.command),
        commands={name: _describe_command(each) for name, each in keys.commands.items()},
        limits=CommandLimits(tuple(_describe_limits(name, each) for name, each in keys.actions.items())),
        operator=keys.operator,
        tracking_error=tuple(_read_tracking_error(name, each) for name, each in keys.actions.items()),
        jump=None if all(map(math.isinf, jumps)) else jumps,
        use_sim_time=keys.use_sim_time,
        clocks_agree=keys.clocks_agree,
        silence_s=keys.silence_s,
        probe=keys.probe,
        open_loop_s=keys.open_loop_s,
    )


def _describe_state(name: str, keys: StateKeys) -> StateEntry:
    texts = (keys.reads,) if isinstance(keys.reads, str) else keys.reads
    try:
        terms = tuple(map(parse_term, texts))
    except UserError as error:
        raise UserError(f"state.{name}.reads: {error}") from None
    return StateEntry(name, keys.unit, terms)


def _describe_action(name: str, keys: ActionKeys) -> ActionEntry:
    return ActionEntry(
        name, keys.unit, keys.kind, keys.low, keys.high, keys.measured, keys.target, keys.keeps, keys.command
    )


def _describe_limits(name: str, keys: ActionKeys) -> EntryLimits:
    limits, where = keys.limits, f"actions.{name}.limits"
    low, high = (_read_bound(getattr(limits, bound), f"{where}.{bound}") for bound in ("low", "high"))
    low = -low if limits.low == UNLIMITED else low
    if not low < high:
        raise UserError(f"{where}.low={low:g} must be below {where}.high={high:g}: exchange them.")
    speed, acceleration, jerk = (
        _read_limit(getattr(limits, limit), f"{where}.{limit}") for limit in ("speed", "acceleration", "jerk")
    )
    return EntryLimits(name, keys.kind, low, high, speed, acceleration, jerk)


def _read_tracking_error(name: str, keys: ActionKeys) -> float:
    if keys.tracking_error is not None:
        return _read_limit(keys.tracking_error, f"actions.{name}.tracking_error")
    speed = _read_limit(keys.limits.speed, f"actions.{name}.limits.speed")
    return LAG_S * speed if keys.measured and not keys.keeps else math.inf


def _describe_command(keys: CommandKeys) -> CommandTopic:
    return CommandTopic(
        keys.topic,
        keys.kind,
        keys.type or TYPES[keys.kind],
        keys.qos,
        keys.horizon_s,
        keys.frame,
        keys.timeout_s,
        keys.order,
        keys.orientation,
        keys.max_effort,
    )


def _read_bound(value: float | str, where: str) -> float:
    if value == UNLIMITED:
        return math.inf
    if isinstance(value, str) or not math.isfinite(value):
        raise UserError(f"{where}={value} is no limit: write a number, or {UNLIMITED}.")
    return value


def _read_limit(value: float | str, where: str) -> float:
    if value == UNLIMITED:
        return math.inf
    if isinstance(value, str) or not 0 < value < math.inf:
        raise UserError(f"{where}={value} is no limit: write a number above 0, or {UNLIMITED}.")
    return value
