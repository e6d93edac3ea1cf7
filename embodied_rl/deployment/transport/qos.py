"""Quality of service: what a publisher offers, what a subscription requests, and when the two meet.

The profiles and their reasons are in docs/ros2.md. Imports the standard library only.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from embodied_rl.interfaces.errors import UserError

Reliability = Literal["reliable", "best_effort"]
Durability = Literal["volatile", "transient_local"]


@dataclass(frozen=True)
class QoS:
    """What one end of a topic offers or requests."""

    reliability: Reliability = "reliable"
    """reliable: lost messages are sent again; best_effort: they are lost."""
    durability: Durability = "volatile"
    """transient_local: who subscribes later gets the last `depth` messages, as long as their publisher lives."""
    depth: int = 1
    """so many of the newest messages are kept for an end that is slower than the other."""
    lifespan_s: float | None = None
    """older messages, by the publisher's clock, are not delivered. Publishers alone use it."""

    def __post_init__(self) -> None:
        if self.reliability not in ("reliable", "best_effort"):
            raise UserError(f"reliability={self.reliability!r} of a topic is neither reliable nor best_effort")
        if self.durability not in ("volatile", "transient_local"):
            raise UserError(f"durability={self.durability!r} of a topic is neither volatile nor transient_local")
        if not 1 <= self.depth <= 10_000:
            raise UserError(f"depth={self.depth} of a topic: 1 to 10000 messages can be kept")
        if self.lifespan_s is not None and not 0 < self.lifespan_s < math.inf:
            raise UserError(f"lifespan_s={self.lifespan_s} of a topic must be a time above 0")


@dataclass(frozen=True)
class Profile:
    """A named use of a topic. A publisher offers as much, and a subscription requests as little, as the use allows."""

    offered: QoS
    requested: QoS


def _same(qos: QoS) -> Profile:
    return Profile(qos, qos)


PROFILES = {
    "sensor_data": _same(QoS("best_effort", depth=5)),
    "state": Profile(QoS("reliable", depth=100), QoS("best_effort", depth=1)),  # 100: 200 ms at 500 Hz
    "command": _same(QoS("reliable", depth=1)),
    "latched": _same(QoS("reliable", "transient_local", depth=1)),
    "deadman": _same(QoS("best_effort", depth=1)),
    "clock": _same(QoS("best_effort", depth=1)),
}
"""By name, as a robot's description uses them."""


def find_profile(name: str) -> Profile:
    """Return a named profile.

    Raises:
        UserError: there is none of that name.
    """
    if name not in PROFILES:
        raise UserError(f"qos={name!r} is no profile: choose one of {', '.join(PROFILES)}")
    return PROFILES[name]


def offer(qos: QoS | str) -> QoS:
    """Return what a publisher offers, given a quality or the name of a profile."""
    return find_profile(qos).offered if isinstance(qos, str) else qos


def request(qos: QoS | str) -> QoS:
    """Return what a subscription requests, given a quality or the name of a profile; it has no lifespan."""
    return find_profile(qos).requested if isinstance(qos, str) else replace(qos, lifespan_s=None)


def find_incompatible(offered: QoS, requested: QoS) -> str | None:
    """Return why a publisher and a subscription do not meet, in words; None if they do.

    DDS connects the two only if nothing is requested that is not offered (OMG DDS 1.4, 2.2.3); otherwise no message
    arrives, and nobody is told.
    """
    if requested.reliability == "reliable" and offered.reliability == "best_effort":
        return "the publisher offers best_effort, the subscription requests reliable"
    if requested.durability == "transient_local" and offered.durability == "volatile":
        return "the publisher offers volatile, the subscription requests transient_local"
    return None
