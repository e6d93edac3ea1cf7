"""What a contract of rosetta may say, key by key: the schema (doc/reference/contract.md of iblnkn/rosetta)."""

from dataclasses import dataclass, field
from typing import Any, Literal

from embodied_rl.config.freeze import at_least


@dataclass(frozen=True)
class ContractQos:
    """The quality of a channel; what is left out is what rclpy takes."""

    reliability: Literal["reliable", "best_effort"] = "reliable"
    durability: Literal["volatile", "transient_local"] = "volatile"
    history: Literal["keep_last", "keep_all"] = "keep_last"
    depth: int = 10
    liveliness: Literal["automatic", "manual_by_topic"] = "automatic"


@dataclass(frozen=True)
class ContractChannel:
    """A topic, and for actions what is sent at a stop. `decoder` and `encoder` name code."""

    topic: str
    type: str
    qos: ContractQos = field(default_factory=ContractQos)
    dtype: Literal["float32", "float64", "video"] | None = None
    safety: Literal["none", "hold", "zeros"] = "none"
    decoder: str = ""
    encoder: str = ""


@dataclass(frozen=True)
class ContractAlign:
    """Which message counts at a tick."""

    strategy: Literal["hold", "asof", "drop"]
    timeline: str
    tolerance_ms: float | None = at_least(0, None)


@dataclass(frozen=True)
class ContractSource:
    """Where the numbers or the picture of a key come from, or go to."""

    channel: ContractChannel
    align: ContractAlign
    select: tuple[str, ...] = ()
    apply: tuple[Any, ...] = ()
    kind: str = "continuous"


@dataclass(frozen=True)
class ContractTask:
    """A topic of words."""

    channel: ContractChannel


@dataclass(frozen=True)
class ContractImageStep:
    """The one step of a picture: height and width."""

    resize: tuple[int, int]


@dataclass(frozen=True)
class ContractClamp:
    """Limits of all entries."""

    min: float
    max: float


@dataclass(frozen=True)
class ContractActionStep:
    """The one step of an action that is understood."""

    clamp: ContractClamp


@dataclass(frozen=True)
class ContractKeys:
    """A contract, as far as a robot's file has a place for it."""

    robot_type: str
    robot_interface: Literal["ros2"]
    fps: int = at_least(1)
    observations: dict[str, Any] = field(default_factory=dict[str, Any])
    actions: dict[str, Any] = field(default_factory=dict[str, Any])
    tasks: dict[str, ContractTask] = field(default_factory=dict[str, ContractTask])
