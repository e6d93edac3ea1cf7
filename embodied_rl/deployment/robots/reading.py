"""Reads a robot's YAML file: the schema of its keys, and the conversion to a `RobotDescription`.

The schema (`RobotKeys`) is documented in docs/robots.md. Files may be untrusted: they are plain data.
"""

import math
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from embodied_rl.config.freeze import freeze_config, suggest_name
from embodied_rl.deployment.execution.limits import CommandLimits, EntryKind, EntryLimits
from embodied_rl.deployment.robots.consistency import check_consistency, check_messages, name_key
from embodied_rl.deployment.robots.description import (
    COMMAND_TYPES,
    ActionEntry,
    CameraEntry,
    CommandKind,
    CommandTopic,
    Fit,
    OperatorTopics,
    Resize,
    RobotDescription,
    StateEntry,
    Topic,
)
from embodied_rl.deployment.robots.fields import parse_term
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.interfaces.errors import UserError

GROUP = "robot"
LAG_S = 0.5
"""Default tracking error, as seconds of motion at the largest speed."""
UNLIMITED = "unlimited"
"""Value of a key without a limit; a missing limit is an error."""


@dataclass(frozen=True)
class TopicKeys:
    name: str
    type: str
    qos: str
    rate_hz: float
    max_age_s: float
    may_repeat: bool = False


@dataclass(frozen=True)
class CameraKeys:
    topic: str
    height: int
    width: int
    info: str = ""
    resize: Resize = "none"
    fit: Fit = "same"


@dataclass(frozen=True)
class StateKeys:
    unit: str
    """In SI: m, rad, m/s …; "1" for dimensionless entries."""
    reads: str | tuple[str, ...]
    """<topic>.<field>, with an optional sign or factor, such as 0.001 * grip.width; or a list, which is summed."""


@dataclass(frozen=True)
class LimitKeys:
    """Limits of an entry, in its unit, per second, per second² and per second³."""

    low: float | str
    high: float | str
    speed: float | str
    acceleration: float | str
    jerk: float | str


@dataclass(frozen=True)
class ActionKeys:
    unit: str
    kind: EntryKind
    low: float
    high: float
    target: str
    limits: LimitKeys
    measured: str = ""
    keeps: bool = False
    tracking_error: float | str | None = None
    """None: `LAG_S` at the largest speed if measured and not `keeps`, else unlimited."""
    jump: float | str = UNLIMITED
    command: str = ""
    """Name of an entry of `commands`; empty: `command` carries it."""


@dataclass(frozen=True)
class CommandKeys:
    topic: str
    kind: CommandKind
    type: str = ""
    """Message type; empty: the first of `COMMAND_TYPES`."""
    qos: str = "command"
    horizon_s: float = 0.1
    frame: str = ""
    timeout_s: float = 0.0
    order: tuple[str, ...] = ()
    orientation: tuple[float, ...] = ()
    max_effort: float = 0.0


@dataclass(frozen=True)
class RobotKeys:
    """Keys of a robot's file; `description.py` has the meaning of each under the same or a similar name."""

    name: str
    verified: str
    control_hz: float
    command_hz: float
    topics: dict[str, TopicKeys]
    state: dict[str, StateKeys]
    actions: dict[str, ActionKeys]
    command: CommandKeys
    commands: dict[str, CommandKeys] = field(default_factory=dict[str, CommandKeys])
    """Further command topics, by names that actions refer to."""
    cameras: dict[str, CameraKeys] = field(default_factory=dict[str, CameraKeys])
    operator: OperatorTopics = field(default_factory=OperatorTopics)
    use_sim_time: bool = False
    clocks_agree: bool = True
    silence_s: float = 1.0
    probe: bool = True
    open_loop_s: float = 1.0


def load_robot(name: str | Path, config_dir: Path | None = None) -> RobotDescription:
    """Return the description of a robot.

    Args:
        name: of a file in `configs/robot/` of this package, a plug-in or `config_dir`; or the path of a YAML file.
        config_dir: an extra folder of configurations, searched first.

    Raises:
        UserError: the file is missing or invalid; the message has the file and the key.
    """
    return read_robot(find_robot_file(name, config_dir))


def find_robot_file(name: str | Path, config_dir: Path | None = None) -> Path:
    """Return the file of a robot, by name or path; raises UserError."""
    from embodied_rl.config.option_files import find_option_file, list_options  # Hydra: only where it is needed

    known = [option.name for option in list_options(GROUP, config_dir)]
    if str(name) in known:
        return find_option_file(GROUP, str(name), config_dir)
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(
            f"robot={name} is not a known robot or a file.{suggest_name(str(name), known)}", code="robot-unknown"
        )
    return path


def read_robot(path: Path) -> RobotDescription:
    """Return the description in a file; see `load_robot`. Raises UserError."""
    keys = read_strict_yaml(path)
    try:
        robot = describe_robot(freeze_config(RobotKeys, keys))
        check_consistency(robot)
        if find_spec("rosbags") is not None:  # it knows the types of messages
            from embodied_rl.deployment.transport.messages import Messages

            check_messages(robot, Messages())
    except UserError as error:
        raise UserError(f"{path}: {error}", code=error.code) from None
    return robot


def describe_robot(keys: RobotKeys) -> RobotDescription:
    """Return the description of keys, without `check_consistency`; raises UserError for invalid limits."""
    state: list[StateEntry] = []
    for name, each in keys.state.items():
        with name_key(f"state.{name}.reads"):
            terms = map(parse_term, (each.reads,) if isinstance(each.reads, str) else each.reads)
            state.append(StateEntry(name, each.unit, tuple(terms)))
    actions = [_describe_action(name, each) for name, each in keys.actions.items()]
    jumps = tuple(jump for *_, jump in actions)
    return RobotDescription(
        name=keys.name,
        verified=keys.verified,
        control_hz=keys.control_hz,
        command_hz=keys.command_hz,
        topics={
            name: Topic(each.name, each.type, each.qos, each.rate_hz, each.max_age_s, each.may_repeat)
            for name, each in keys.topics.items()
        },
        cameras=tuple(CameraEntry(name, **vars(each)) for name, each in keys.cameras.items()),
        state=tuple(state),
        actions=tuple(entry for entry, *_ in actions),
        command=_describe_command(keys.command),
        commands={name: _describe_command(each) for name, each in keys.commands.items()},
        limits=CommandLimits(tuple(limits for _, limits, *_ in actions)),
        operator=keys.operator,
        tracking_error=tuple(error for _, _, error, _ in actions),
        jump=None if all(map(math.isinf, jumps)) else jumps,
        use_sim_time=keys.use_sim_time,
        clocks_agree=keys.clocks_agree,
        silence_s=keys.silence_s,
        probe=keys.probe,
        open_loop_s=keys.open_loop_s,
    )


def _describe_command(keys: CommandKeys) -> CommandTopic:
    others = {name: value for name, value in vars(keys).items() if name not in ("topic", "type")}
    return CommandTopic(name=keys.topic, type_name=keys.type or COMMAND_TYPES[keys.kind][0], **others)


def _describe_action(name: str, keys: ActionKeys) -> tuple[ActionEntry, EntryLimits, float, float]:
    """Return an entry, its limits, its tracking error and its jump."""
    where, limits = f"actions.{name}", keys.limits
    low = _read_limit(limits.low, f"{where}.limits.low", -math.inf)
    high = _read_limit(limits.high, f"{where}.limits.high", -math.inf)
    low = -low if limits.low == UNLIMITED else low
    if not low < high:
        raise UserError(
            f"{where}.limits.low={low:g} must be below {where}.limits.high={high:g}: exchange them.",
            code="robot-limits-invalid",
        )
    speed, acceleration, jerk = (
        _read_limit(getattr(limits, limit), f"{where}.limits.{limit}") for limit in ("speed", "acceleration", "jerk")
    )
    entry = ActionEntry(
        name, keys.unit, keys.kind, keys.low, keys.high, keys.measured, keys.target, keys.keeps, keys.command
    )
    error = LAG_S * speed if keys.measured and not keys.keeps else math.inf
    if keys.tracking_error is not None:
        error = _read_limit(keys.tracking_error, f"{where}.tracking_error")
    jump = _read_limit(keys.jump, f"{where}.jump")
    return entry, EntryLimits(name, keys.kind, low, high, speed, acceleration, jerk), error, jump


def _read_limit(value: float | str, where: str, above: float = 0.0) -> float:
    if value == UNLIMITED:
        return math.inf
    if isinstance(value, str) or not above < value < math.inf:
        kind = "a number above 0" if above == 0 else "a number"
        raise UserError(f"{where}={value} is not a limit: write {kind}, or {UNLIMITED}.", code="robot-limits-invalid")
    return value
