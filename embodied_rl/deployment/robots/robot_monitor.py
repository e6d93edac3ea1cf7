"""Monitor of a robot's topics: counts, arrival times and stamps of messages."""

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
"""Queue depth of the subscriptions, so that rates are measured without loss."""
LARGEST_DIGESTED = 500
"""Number of messages per topic that are compared."""


@dataclass
class ObservedTopic:
    """Messages of one topic.

    Attributes:
        received_ns: of each message. stamps_ns: of the headers; missing and zero stamps are left out.
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
        """Number of messages."""
        return len(self.received_ns)

    @property
    def rate_hz(self) -> float:
        """Mean rate between the first and the last message; 0 for fewer than two."""
        spent = (self.received_ns[-1] - self.received_ns[0]) * 1e-9 if self.count > 1 else 0.0
        return (self.count - 1) / spent if spent > 0 else 0.0

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two messages; `inf` for fewer than two."""
        pairs = zip(self.received_ns, self.received_ns[1:], strict=False)
        return max(((after - before) * 1e-9 for before, after in pairs), default=math.inf)

    @property
    def offset_s(self) -> float | None:
        """Median of arrival time minus stamp; None without stamps."""
        return statistics.median(self.offsets_s) if self.offsets_s else None


class RobotMonitor:
    """Subscribes to all topics of a robot; publishes nothing.

    Args:
        robot: its description. transport: an open one, which the caller spins.
    """

    def __init__(self, robot: RobotDescription, transport: Transport) -> None:
        self.robot, self.transport = robot, transport
        self.clock: ObservedTopic | None = None
        if robot.use_sim_time:
            self.clock = self._listen(Topic("/clock", "rosgraph_msgs/msg/Clock", "clock", 1.0, 2.0), self._note_clock)
        self.topics = {name: self._listen(topic, self._note) for name, topic in robot.topics.items()}

    @property
    def all(self) -> list[ObservedTopic]:
        """All observed topics, the clock included."""
        return [*([self.clock] if self.clock else []), *self.topics.values()]

    @property
    def messages(self) -> dict[str, Any]:
        """Last message of each topic that has one, by short name."""
        return {name: seen.last for name, seen in self.topics.items() if seen.last is not None}

    def reset_counts(self) -> None:
        """Discard the messages so far, such as those during discovery."""
        for seen in self.all:
            for noted in (seen.received_ns, seen.stamps_ns, seen.offsets_s, seen.digests):
                noted.clear()

    def close(self) -> None:
        """Close the subscriptions."""
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
        now_ns: int | None = received_ns
        if self.clock is not None:  # simulated time, unknown before the first /clock
            clock = self.clock.last
            now_ns = None if clock is None else clock.clock.sec * 1_000_000_000 + clock.clock.nanosec
        if (stamp := read_stamp(message)) is not None:
            seen.stamps_ns.append(stamp)
            if now_ns is not None:
                seen.offsets_s.append((now_ns - stamp) * 1e-9)
