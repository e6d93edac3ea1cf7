"""What arrives on a robot's topics within some seconds: how many messages, when, with which stamps."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from embodied_rl.deployment.robots.description import RobotDescription, Topic
from embodied_rl.deployment.robots.mapping import digest_content, read_stamp
from embodied_rl.deployment.transport.interface import Subscription, Transport
from embodied_rl.deployment.transport.qos import request

DEPTH = 1000
"""Messages that wait for whoever measures a rate; a control loop keeps the newest alone."""
LARGEST_DIGESTED = 500
"""Messages of a topic whose contents are compared."""


@dataclass
class ObservedTopic:
    """A topic while it is watched.

    Attributes:
        received_ns, stamps_ns: of each message; a stamp is the header's, and is left out where there is none or 0.
        last: the last message. digests: of the first messages' contents.
    """

    topic: Topic
    subscription: Subscription
    received_ns: list[int] = field(default_factory=list[int])
    stamps_ns: list[int] = field(default_factory=list[int])
    offsets_s: list[float] = field(default_factory=list[float])
    digests: set[bytes] = field(default_factory=set[bytes])
    last: Any = None

    @property
    def count(self) -> int:
        """Return how many messages came."""
        return len(self.received_ns)

    @property
    def rate_hz(self) -> float:
        """Return messages per second between the first and the last one; 0 for fewer than two."""
        spent = (self.received_ns[-1] - self.received_ns[0]) * 1e-9 if self.count > 1 else 0.0
        return (self.count - 1) / spent if spent > 0 else 0.0

    @property
    def longest_gap_s(self) -> float:
        """Return the longest time between two messages; `inf` for fewer than two."""
        pairs = zip(self.received_ns, self.received_ns[1:], strict=False)
        return max(((after - before) * 1e-9 for before, after in pairs), default=math.inf)

    @property
    def offset_s(self) -> float | None:
        """Return how much later than its stamp a message came, the median; None without stamps."""
        return statistics.median(self.offsets_s) if self.offsets_s else None


class RobotWatch:
    """Listens to all topics of a robot, and publishes nothing.

    Args:
        robot: its description. transport: an open one; somebody has to spin it.
    """

    def __init__(self, robot: RobotDescription, transport: Transport) -> None:
        self.robot, self.transport = robot, transport
        self.clock: ObservedTopic | None = None
        if robot.use_sim_time:
            self.clock = self._listen(Topic("/clock", "rosgraph_msgs/msg/Clock", "clock", 1.0, 2.0), self._note_clock)
        self.topics = {name: self._listen(topic, self._note) for name, topic in robot.topics.items()}

    @property
    def all(self) -> list[ObservedTopic]:
        """Return everything that is listened to, the clock included."""
        return [*([self.clock] if self.clock else []), *self.topics.values()]

    @property
    def messages(self) -> dict[str, Any]:
        """Return the last message of each topic that has one, by its short name."""
        return {name: seen.last for name, seen in self.topics.items() if seen.last is not None}

    def begin_anew(self) -> None:
        """Forget what has come, such as while publishers were being discovered."""
        for seen in self.all:
            for noted in (seen.received_ns, seen.stamps_ns, seen.offsets_s, seen.digests):
                noted.clear()

    def close(self) -> None:
        """Stop listening."""
        for seen in self.all:
            seen.subscription.close()

    def _listen(self, topic: Topic, note: Callable[[ObservedTopic, Any, int], None]) -> ObservedTopic:
        def arrive(message: Any, received_ns: int, source_ns: int) -> None:
            note(seen, message, received_ns)

        qos = replace(request(topic.qos), depth=DEPTH)
        subscription = self.transport.create_subscription(topic.name, topic.type_name, qos, arrive)
        seen = ObservedTopic(topic, subscription)
        return seen

    def _note_clock(self, seen: ObservedTopic, message: Any, received_ns: int) -> None:
        seen.received_ns.append(received_ns)
        seen.stamps_ns.append(message.clock.sec * 1_000_000_000 + message.clock.nanosec)
        seen.last = message

    def _note(self, seen: ObservedTopic, message: Any, received_ns: int) -> None:
        seen.received_ns.append(received_ns)
        seen.last = message
        if len(seen.digests) < LARGEST_DIGESTED:
            seen.digests.add(digest_content(message))
        now_ns = self._read_now(received_ns)
        if (stamp := read_stamp(message)) is not None:
            seen.stamps_ns.append(stamp)
            if now_ns is not None:
                seen.offsets_s.append((now_ns - stamp) * 1e-9)

    def _read_now(self, received_ns: int) -> int | None:
        """Return the time that stamps are compared with: the simulation's, where it says one."""
        if self.clock is None:
            return received_ns
        if self.clock.last is None:
            return None
        return self.clock.last.clock.sec * 1_000_000_000 + self.clock.last.clock.nanosec
