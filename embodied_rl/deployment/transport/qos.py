"""Quality of service (QoS) of publishers and subscriptions, and when the two match.

docs/ros2.md explains the profiles. Imports the standard library only.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from embodied_rl.interfaces.errors import UserError

Reliability = Literal["reliable", "best_effort"]
Durability = Literal["volatile", "transient_local"]


@dataclass(frozen=True)
class QoS:
    """QoS that a publisher offers or a subscription requests."""

    reliability: Reliability = "reliable"
    """reliable: lost messages are retransmitted; best_effort: they are not."""
    durability: Durability = "volatile"
    """transient_local: a later subscription gets the last `depth` messages while their publisher exists."""
    depth: int = 1
    """Number of newest messages kept for a slow endpoint."""
    lifespan_s: float | None = None
    """Age, by the publisher's clock, after which a message is not delivered. For publishers only."""

    def __post_init__(self) -> None:
        if self.reliability not in ("reliable", "best_effort"):
            raise UserError(f"reliability={self.reliability!r} is neither reliable nor best_effort", code="qos-invalid")
        if self.durability not in ("volatile", "transient_local"):
            raise UserError(
                f"durability={self.durability!r} is neither volatile nor transient_local", code="qos-invalid"
            )
        if not 1 <= self.depth <= 10_000:
            raise UserError(f"depth={self.depth} must be from 1 to 10000 messages", code="qos-invalid")
        if self.lifespan_s is not None and not 0 < self.lifespan_s < math.inf:
            raise UserError(f"lifespan_s={self.lifespan_s} must be a finite time above 0", code="qos-invalid")


@dataclass(frozen=True)
class Profile:
    """QoS for one kind of topic: the strictest that a publisher offers, the loosest that a subscription requests."""

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
"""Profiles by the names used in a robot's file."""


def find_profile(name: str) -> Profile:
    """Return a profile by name; raise `UserError` if there is none."""
    if name not in PROFILES:
        raise UserError(f"qos={name!r} is not a profile: choose one of {', '.join(PROFILES)}", code="qos-unknown")
    return PROFILES[name]


def offer(qos: QoS | str) -> QoS:
    """Return the QoS that a publisher offers, given QoS or the name of a profile."""
    return find_profile(qos).offered if isinstance(qos, str) else qos


def request(qos: QoS | str) -> QoS:
    """Return the QoS that a subscription requests, given QoS or the name of a profile; it has no lifespan."""
    return find_profile(qos).requested if isinstance(qos, str) else replace(qos, lifespan_s=None)


def find_incompatible(offered: QoS, requested: QoS) -> str | None:
    """Return why a publisher and a subscription do not match, or None if they do.

    DDS connects them only if all requested policies are offered (OMG DDS 1.4, 2.2.3); otherwise no message arrives,
    without an error.
    """
    if requested.reliability == "reliable" and offered.reliability == "best_effort":
        return "the publisher offers best_effort, the subscription requests reliable"
    if requested.durability == "transient_local" and offered.durability == "volatile":
        return "the publisher offers volatile, the subscription requests transient_local"
    return None
