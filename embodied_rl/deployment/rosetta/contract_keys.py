"""Schema of contracts of rosetta (doc/reference/contract.md of iblnkn/rosetta)."""

from dataclasses import dataclass, field
from typing import Any, Literal

from embodied_rl.config.freeze import at_least


@dataclass(frozen=True)
class ContractQos:
    """QoS of a channel; defaults are those of rclpy."""

    reliability: Literal["reliable", "best_effort"] = "reliable"
    durability: Literal["volatile", "transient_local"] = "volatile"
    history: Literal["keep_last", "keep_all"] = "keep_last"
    depth: int = 10
    liveliness: Literal["automatic", "manual_by_topic"] = "automatic"


@dataclass(frozen=True)
class ContractChannel:
    """A topic and, for actions, the command sent at a stop. `decoder` and `encoder` name code."""

    topic: str
    type: str
    qos: ContractQos = field(default_factory=ContractQos)
    dtype: Literal["float32", "float64", "video"] | None = None
    safety: Literal["none", "hold", "zeros"] = "none"
    decoder: str = ""
    encoder: str = ""


@dataclass(frozen=True)
class ContractAlign:
    """How the message of a tick is selected."""

    strategy: Literal["hold", "asof", "drop"]
    timeline: str
    tolerance_ms: float | None = at_least(0, None)


@dataclass(frozen=True)
class ContractSource:
    """Source of a state or an image, or target of an action."""

    channel: ContractChannel
    align: ContractAlign
    select: tuple[str, ...] = ()
    apply: tuple[Any, ...] = ()
    kind: str = "continuous"


@dataclass(frozen=True)
class ContractTask:
    """A topic of instructions."""

    channel: ContractChannel


@dataclass(frozen=True)
class ContractImageStep:
    """Resizing of an image to height and width."""

    resize: tuple[int, int]


@dataclass(frozen=True)
class ContractClamp:
    """Limits of all entries."""

    min: float
    max: float


@dataclass(frozen=True)
class ContractActionStep:
    """The supported step of an action."""

    clamp: ContractClamp


@dataclass(frozen=True)
class ContractKeys:
    """The supported keys of a contract."""

    robot_type: str
    robot_interface: Literal["ros2"]
    fps: int = at_least(1)
    observations: dict[str, Any] = field(default_factory=dict[str, Any])
    actions: dict[str, Any] = field(default_factory=dict[str, Any])
    tasks: dict[str, ContractTask] = field(default_factory=dict[str, ContractTask])
