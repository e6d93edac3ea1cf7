"""When a robot came to rest, as its joint states say; for measurements of stops."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_rl.deployment.transport.interface import Transport

STILL = 0.02
"""rad/s, or m/s: a robot none of whose joints is faster is still."""
LASTS_S = 0.2
"""For so long it has to be so: what passes through 0 is not still."""


@dataclass
class StillnessWatch:
    """Watches joint states; `note` is the callback of a subscription to them.

    Attributes:
        limit: the speed below which a joint is still.
        moved_ns: when the robot was last seen to move, by the receiver's clock; None: never.
        seen_ns: when the last joint states came; None: none did.
        speed: the largest of a joint in the last joint states.
    """

    limit: float = STILL
    moved_ns: int | None = None
    seen_ns: int | None = None
    speed: float = field(default=float("nan"))

    def note(self, message: Any, received_ns: int, source_ns: int) -> None:
        """Take joint states. Speeds that are no numbers count as movement: nobody knows."""
        self.seen_ns, self.speed = received_ns, float(np.max(np.abs(message.velocity), initial=0.0))
        if not self.speed < self.limit:
            self.moved_ns = received_ns

    def measure(self, since_ns: int) -> float | None:
        """Return the seconds from `since_ns` until the robot was still; None while it is not, or was not for `LASTS_S`.

        Args:
            since_ns: of the receiver's clock, such as that of a kill.
        """
        if self.seen_ns is None:
            return None
        stopped = max(since_ns, self.moved_ns or 0)
        if self.seen_ns - stopped < LASTS_S * 1e9:
            return None
        return (stopped - since_ns) / 1e9


def measure_stop(node: Transport, topic: str, since_ns: int, timeout_s: float) -> float | None:
    """Return the seconds from `since_ns` until a robot was still, as its joint states say; None: not in time.

    Joint states that came before this call are not known, so it begins at once.

    Args:
        node: a transport; this spins it, unless a thread of its own does.
        topic: of joint states.
        since_ns: nanoseconds since 1970 by this machine's clock, such as when something was killed.
        timeout_s: for so long it waits.
    """
    watch = StillnessWatch()
    subscription = node.create_subscription(topic, "sensor_msgs/msg/JointState", "state", watch.note)
    try:
        node.spin_until(lambda: watch.measure(since_ns) is not None, timeout_s)
    finally:
        subscription.close()
    return watch.measure(since_ns)
