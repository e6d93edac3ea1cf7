"""Newest message of each topic that an observation needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embodied_rl.deployment.execution.tick import StreamReading
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.mapping import ObservationMapping, make_stream
from embodied_rl.deployment.transport.interface import Callback, Subscription, Transport
from embodied_rl.interfaces.sim import Observation

CLOCK, CLOCK_TYPE = "/clock", "rosgraph_msgs/msg/Clock"


@dataclass(frozen=True)
class StampedMessage:
    """A decoded message, its input to the freshness check, and its publication time in ns of the transport."""

    message: Any
    stream: StreamReading
    source_ns: int


class LatestMessages:
    """Subscribes to a robot's topics. Callbacks replace whole entries, so the control loop may read without a lock.

    Args:
        clock: seconds, the core's.

    Attributes:
        newest, subscriptions: by the short name of a topic.
        clock_ns: last time of /clock; None before the first one, and for robots without simulated time.
        clock_changes: number of different times of /clock.
    """

    def __init__(self, node: Transport, robot: RobotDescription, clock: Callable[[], float]) -> None:
        self.mapping = ObservationMapping(robot)
        self.newest: dict[str, StampedMessage] = {}
        self.clock_ns: int | None = None
        self.clock_changes = 0
        self._clock = clock
        topics = {name: robot.topics[name] for name in self.mapping.topics}
        self.subscriptions: dict[str, Subscription] = {
            name: node.create_subscription(each.name, each.type_name, each.qos, self._make_callback(name))
            for name, each in topics.items()
        }
        if robot.use_sim_time:
            node.create_subscription(CLOCK, CLOCK_TYPE, "clock", self._on_clock)

    def snapshot(self) -> dict[str, Any]:
        """Return the newest messages by short name; later messages do not change the result."""
        return {name: each.message for name, each in self.newest.copy().items()}

    def observe(self, messages: Mapping[str, Any], instruction: str) -> Observation:
        """Return an observation of one row from a snapshot; raises `UnusableMessageError`."""
        state = self.mapping.read_state(messages).astype(np.float32)
        pictures = self.mapping.read_pictures(messages)
        return Observation({name: each[None] for name, each in pictures.items()}, state[None], (instruction,))

    def find_newest_state(self) -> float | None:
        """Return the arrival time of the newest state message, in seconds of the clock; None before the first one."""
        found = (self.newest.get(name) for name in self.mapping.state_topics)
        return max((each.stream.received_s for each in found if each is not None), default=None)

    def is_silent(self, longest_s: float) -> bool:
        """Return whether a state topic has had no message for longer than `longest_s`."""
        found = (self.newest.get(name) for name in self.mapping.state_topics)
        latest = self._clock() - longest_s
        return any(each is not None and each.stream.received_s < latest for each in found)

    def find_common_stamp(self, after_stamp: int | None, after_ns: int) -> int | None:
        """Return the stamp that the newest messages of all topics share, as a robot in lockstep sends them, or None.

        Args:
            after_stamp: the stamp must be later; None: any. after_ns: all publication times must be later.
        """
        found = self.newest.copy()
        if len(found) < len(self.mapping.topics) or any(each.source_ns <= after_ns for each in found.values()):
            return None
        stamps = {each.stream.source_ns for each in found.values()}
        stamp = stamps.pop()
        if self.clock_ns is not None and self.clock_ns < stamp:
            return None  # the robot publishes /clock last, after an episode's outcome
        return stamp if not stamps and (after_stamp is None or stamp > after_stamp) else None

    def _make_callback(self, name: str) -> Callback:
        def store(message: Any, received_ns: int, source_ns: int) -> None:
            stream = make_stream(message, source_ns, self._clock())
            is_picture = name in self.mapping.picture_topics
            unreadable = self.mapping.explain_unreadable(name, message, self.snapshot()) if is_picture else ""
            self.newest[name] = StampedMessage(message, replace(stream, unreadable=unreadable), source_ns)

        return store

    def _on_clock(self, message: Any, received_ns: int, source_ns: int) -> None:
        now_ns = message.clock.sec * 1_000_000_000 + message.clock.nanosec
        self.clock_changes += now_ns != self.clock_ns
        self.clock_ns = now_ns
