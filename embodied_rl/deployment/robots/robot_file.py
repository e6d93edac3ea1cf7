"""What a robot's YAML file may say, key by key: the schema, and the documentation of the format (docs/robots.md)."""

from dataclasses import dataclass, field

from embodied_rl.deployment.execution.limits import EntryKind
from embodied_rl.deployment.robots.description import CommandKind, Fit, OperatorTopics, Resize

UNLIMITED = "unlimited"
"""What stands in the place of a number for no limit: a limit that is left out is an error."""


@dataclass(frozen=True)
class TopicKeys:
    """A topic that the robot publishes; see `description.Topic`."""

    name: str
    type: str
    qos: str
    rate_hz: float
    max_age_s: float
    may_repeat: bool = False


@dataclass(frozen=True)
class CameraKeys:
    """A camera; see `description.CameraEntry`."""

    topic: str
    height: int
    width: int
    info: str = ""
    resize: Resize = "none"
    fit: Fit = "same"


@dataclass(frozen=True)
class StateKeys:
    """An entry of the state."""

    unit: str
    """in SI: m, rad, m/s …; "1" for what has none."""
    reads: str | tuple[str, ...]
    """<topic>.<field>, or a list, which is added up. A sign or a factor may stand before it: 0.001 * grip.width."""


@dataclass(frozen=True)
class LimitKeys:
    """The limits of an entry, in its quantity's unit, per second, per second² and per second³."""

    low: float | str
    high: float | str
    speed: float | str
    acceleration: float | str
    jerk: float | str


@dataclass(frozen=True)
class ActionKeys:
    """An entry of an action; see `description.ActionEntry`."""

    unit: str
    kind: EntryKind
    low: float
    high: float
    target: str
    limits: LimitKeys
    measured: str = ""
    keeps: bool = False
    tracking_error: float | str | None = None
    """None: `reading.LAG_S` at the largest speed, for what is measured and does not keep; else unlimited."""
    jump: float | str = UNLIMITED
    command: str = ""
    """Name of an entry of `commands`; empty: `command` carries it."""


@dataclass(frozen=True)
class CommandKeys:
    """Where commands go; see `description.CommandTopic`."""

    topic: str
    kind: CommandKind
    type: str = ""
    """of the message; empty: the usual one of the kind."""
    qos: str = "command"
    horizon_s: float = 0.1
    frame: str = ""
    timeout_s: float = 0.0
    order: tuple[str, ...] = ()
    orientation: tuple[float, ...] = ()
    max_effort: float = 0.0


@dataclass(frozen=True)
class RobotKeys:
    """A robot; see `description.RobotDescription`."""

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
