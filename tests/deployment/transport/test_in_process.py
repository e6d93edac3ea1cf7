"""Further requirements on the in-process transport: determinism and errors."""

from typing import Any

import pytest

from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import TransportError
from tests.support.transports import JOINTS, START_NS


def open_nodes(*names: str, clock: Any = lambda: START_NS) -> list[InProcessTransport]:
    bus = Bus(clock)
    return [InProcessTransport(bus, name) for name in names]


def test_topics_are_delivered_in_the_order_of_publishing() -> None:
    talker, listener = open_nodes("talker", "listener")
    came: list[str] = []
    for topic in ("/a", "/b"):
        listener.create_subscription(topic, JOINTS, QoS(depth=9), lambda message, *_, of=topic: came.append(of))
    publishers = {topic: talker.create_publisher(topic, JOINTS, QoS(depth=9)) for topic in ("/a", "/b")}
    order = ["/b", "/a", "/a", "/b", "/a"]
    for topic in order:
        publishers[topic].publish(talker.messages.make(JOINTS))
    assert listener.spin_once() == 5 and came == order


def test_messages_published_in_a_callback_arrive_at_the_next_spin() -> None:
    (node,) = open_nodes("node")
    count = 0

    def echo(message: Any, *_: int) -> None:
        nonlocal count
        count += 1
        publisher.publish(message)

    node.create_subscription("/a", JOINTS, QoS(depth=5), echo)
    publisher = node.create_publisher("/a", JOINTS, QoS())
    publisher.publish(node.messages.make(JOINTS))
    assert [node.spin_once() for _ in range(3)] == [1, 1, 1] and count == 3
    assert node.spin_until(lambda: count == 10)


def test_spin_until_ends_without_messages() -> None:
    (node,) = open_nodes("node")
    assert not node.spin_until(lambda: False, timeout_s=1e9)


def test_invalid_bytes_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    talker, listener = open_nodes("talker", "listener")
    came: list[Any] = []
    subscription = listener.create_subscription("/a", JOINTS, QoS(depth=9), lambda *of: came.append(of))
    publisher = talker.create_publisher("/a", JOINTS, QoS(depth=9))
    for _ in range(5):
        publisher.send(b"\0\1\0\0" + b"\xff" * 20)
    publisher.publish(talker.messages.make(JOINTS))
    assert listener.spin_once() == 1 == len(came) == subscription.received
    assert subscription.refused == 5
    assert subscription.last_refusal.startswith(f"/a: 24 bytes are not a message of {JOINTS}: Invalid string length")
    assert len(caplog.records) == 3, "the 1st, the 2nd and the 4th"


def test_start_is_refused() -> None:
    (node,) = open_nodes("node")
    with pytest.raises(TransportError, match="spin_once"):
        node.start()
