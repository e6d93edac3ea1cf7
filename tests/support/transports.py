"""Pairs of nodes, isolated from other tests on this machine."""

import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.interface import Subscription, Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.deployment.transport.qos import QoS

LONG_S = 30.0
"""Deadline for what normally happens at once."""
JOINTS = "sensor_msgs/msg/JointState"
HAS_ROS = find_spec("rclpy") is not None
"""Whether ROS 2's own Python package can be imported here."""
STAND_IN = "stand-in for rclpy"
"""Without ROS 2: our transport over a fake of rclpy (tests/support/rclpy_stand_in.py)."""
START_NS = 1_700_000_000_000_000_000


@contextmanager
def borrow_domain() -> Iterator[int]:
    """Reserve a DDS domain of this machine by locking a file."""
    folder = Path(tempfile.gettempdir(), f"embodied-rl-domains-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for domain in range(20, 100):  # below the ports that Linux gives away
        with open(folder / str(domain), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield domain
            return
    pytest.fail("80 tests use DDS at once")


@contextmanager
def borrow_environment() -> Iterator[RosEnvironment]:
    """An environment on the loopback interface with a reserved domain and a random tag."""
    with borrow_domain() as domain:
        yield RosEnvironment(domain=domain, range="LOCALHOST", tag=secrets.token_hex(8))


@dataclass
class Pair:
    """A publishing and a subscribing node of one transport."""

    kind: str
    talker: Transport
    listener: Transport
    wait: Callable[[float], None]
    """Advance the clock that stamps messages by a number of seconds."""
    got: list[Any] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)

    def note(self, message: Any, received_ns: int, source_ns: int) -> None:
        self.got.append(message)
        self.times.append((received_ns, source_ns))

    def spin_for(self, count: int) -> bool:
        """Spin until `count` messages have been received in total."""
        return self.listener.spin_until(lambda: len(self.got) >= count, LONG_S)

    def spin_in_vain(self) -> None:
        """Spin for a while, in case a message arrives that should not."""
        self.listener.spin_until(lambda: False, 0.3)

    def joints(self, position: Any) -> Any:
        return self.talker.messages.make(JOINTS, position=position)

    def connect(self, qos: QoS | str, requested: QoS | str | None = None, topic: str = "/joints") -> Any:
        """Return a publisher that is matched with a subscription that records messages."""
        subscription = self.listener.create_subscription(topic, JOINTS, requested or qos, self.note)
        publisher = self.talker.create_publisher(topic, JOINTS, qos)
        matched = lambda: subscription.count_matched() == 1 == publisher.count_matched()  # noqa: E731
        assert matched() or self.listener.spin_until(matched, LONG_S)
        return publisher

    def mismatches_of(self, subscription: Subscription) -> tuple[str, ...]:
        """Wait for mismatches of a subscription and return them."""
        assert (
            self.listener.spin_until(lambda: bool(subscription.find_mismatches()), LONG_S)
            or subscription.find_mismatches()
        )
        return subscription.find_mismatches()


@contextmanager
def open_pair(kind: str, environment: RosEnvironment) -> Iterator[Pair]:
    """Open two nodes of a transport."""
    if kind == "in_process":
        now = [START_NS]
        bus = Bus(lambda: now[0])

        def pass_time(seconds: float) -> None:
            now[0] += int(seconds * 1e9)

        with InProcessTransport(bus, "talker") as talker, InProcessTransport(bus, "listener") as listener:
            yield Pair(kind, talker, listener, pass_time)
        return
    kind = "rclpy" if kind == STAND_IN else kind
    with (
        open_transport(kind, "talker", environment) as talker,
        open_transport(kind, "listener", environment) as listener,
    ):
        yield Pair(kind, talker, listener, time.sleep)


def list_kinds() -> list[str]:
    """Return the transports that can be opened here."""
    return ["in_process", "dds", "rclpy" if HAS_ROS else STAND_IN]
