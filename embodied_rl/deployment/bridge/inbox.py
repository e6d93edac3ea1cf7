"""The newest message of each topic that an observation needs, decoded where they arrive, read by the control loop."""

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
class Received:
    """A message, what the freshness gate is told of it, and when its publisher sent it, in ns of the transport."""

    message: Any
    stream: StreamReading
    source_ns: int


class Inbox:
    """Subscribes to a robot's topics. Callbacks write and the control loop reads, each entry whole.

    Args:
        node: the transport. robot: its description.
        clock: seconds, the core's.

    Attributes:
        mapping: from messages to what a policy sees.
        newest: short name of a topic → its newest message.
        subscriptions: by the short name.
        clock_ns: what /clock said last; None before, and for robots whose time is real.
        clock_changes: how often that was something new.
    """

    def __init__(self, node: Transport, robot: RobotDescription, clock: Callable[[], float]) -> None:
        self.mapping = ObservationMapping(robot)
        self.newest: dict[str, Received] = {}
        self.clock_ns: int | None = None
        self.clock_changes = 0
        self._clock = clock
        topics = {name: robot.topics[name] for name in self.mapping.topics}
        self.subscriptions: dict[str, Subscription] = {
            name: node.create_subscription(each.name, each.type_name, each.qos, self._note(name))
            for name, each in topics.items()
        }
        if robot.use_sim_time:
            node.create_subscription(CLOCK, CLOCK_TYPE, "clock", self._note_clock)

    def keep(self) -> dict[str, Any]:
        """Return the newest messages by their short names; later ones do not change them."""
        return {name: each.message for name, each in self.newest.copy().items()}

    def observe(self, messages: Mapping[str, Any], words: str) -> Observation:
        """Return an observation of one row from kept messages.

        Raises:
            UnusableMessageError: a message cannot be used.
        """
        state = self.mapping.read_state(messages).astype(np.float32)
        pictures = self.mapping.read_pictures(messages)
        return Observation({name: each[None] for name, each in pictures.items()}, state[None], (words,))

    def find_newest_state(self) -> float | None:
        """Return when the newest message of the state came, in seconds of the clock; None: none has come."""
        found = (self.newest.get(name) for name in self.mapping.state_topics)
        return max((each.stream.received_s for each in found if each is not None), default=None)

    def is_lost(self, longest_s: float) -> bool:
        """Return whether a topic of the state has said nothing for so long that the robot may be elsewhere by now."""
        found = (self.newest.get(name) for name in self.mapping.state_topics)
        latest = self._clock() - longest_s
        return any(each is not None and each.stream.received_s < latest for each in found)

    def find_set(self, after_stamp: int | None, after_ns: int) -> int | None:
        """Return the stamp that the newest messages of all topics have in common, as a robot in lockstep sends them.

        Args:
            after_stamp: a stamp that is no longer of interest, nor are earlier ones; None: any.
            after_ns: the same of the times at which messages were published.

        Returns:
            None while messages of that set are missing.
        """
        found = self.newest.copy()
        if len(found) < len(self.mapping.topics) or any(each.source_ns <= after_ns for each in found.values()):
            return None
        stamps = {each.stream.source_ns for each in found.values()}
        stamp = stamps.pop()
        if self.clock_ns is not None and self.clock_ns < stamp:
            return None  # it says its time last, after an episode's outcome
        return stamp if not stamps and (after_stamp is None or stamp > after_stamp) else None

    def _note(self, name: str) -> Callback:
        def note(message: Any, received_ns: int, source_ns: int) -> None:
            stream = make_stream(message, source_ns, self._clock())
            seen = name in self.mapping.picture_topics
            unreadable = self.mapping.explain_unreadable(name, message, self.keep()) if seen else ""
            self.newest[name] = Received(message, replace(stream, unreadable=unreadable), source_ns)

        return note

    def _note_clock(self, message: Any, received_ns: int, source_ns: int) -> None:
        now_ns = message.clock.sec * 1_000_000_000 + message.clock.nanosec
        self.clock_changes += now_ns != self.clock_ns
        self.clock_ns = now_ns
