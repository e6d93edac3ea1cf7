"""An emergency stop with several publishers: each releases only its own stop."""

from collections.abc import Callable
from typing import Any

import pytest

from embodied_rl.deployment.transport.emergency_stop import STOP_QOS, EmergencyStopState
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.interface import Publisher
from tests.support.transports import Pair

BOOL = "std_msgs/msg/Bool"


class StopTopic:
    """A subscription to the stop; with `identifies` the transport identifies publishers."""

    def __init__(self, identifies: bool = True) -> None:
        self.bus, self.state = Bus(iter(range(10**6)).__next__), EmergencyStopState()
        self.node = InProcessTransport(self.bus, "robot")
        self.subscription = self.node.create_subscription("/estop", BOOL, STOP_QOS, self.receive)
        self.identifies, self.pressed = identifies, False

    def receive(self, message: Any, received_ns: int, source_ns: int) -> None:
        if not self.identifies:
            self.subscription.publisher = None
        self.pressed = self.state.update(self.subscription, bool(message.data))

    def open(self, name: str) -> tuple[Publisher, Callable[[bool], bool]]:
        """Return a publisher of a new node, and a function that publishes and returns whether the stop is active."""
        publisher = InProcessTransport(self.bus, name).create_publisher("/estop", BOOL, "latched")

        def press(pressed: bool) -> bool:
            publisher.publish(self.node.messages.make(BOOL, data=pressed))
            self.node.spin_once()
            return self.pressed

        return publisher, press


def test_a_publisher_releases_only_its_own_stop() -> None:
    topic = StopTopic()
    (_, first), (_, second) = topic.open("button"), topic.open("fence")
    assert not second(False) and first(True) and second(False)
    assert second(True) and first(False) and "/fence" in topic.state.describe(topic.subscription)
    assert not second(False) and not topic.state.describe(topic.subscription)


def test_a_disconnected_publisher_keeps_the_stop_active() -> None:
    topic = StopTopic()
    (publisher, first), (_, second) = topic.open("button"), topic.open("fence")
    assert first(True)
    publisher.close()
    assert second(False) and second(True) and second(False)
    described = topic.state.describe(topic.subscription)
    assert described == "/estop: the emergency stop is pressed by a node that has disconnected"


def test_an_unread_press_is_not_overwritten_by_another_publisher() -> None:
    topic = StopTopic()
    first, second = (topic.open(name)[0] for name in ("button", "fence"))
    for publisher, pressed in ((first, True), (second, False)):
        publisher.publish(topic.node.messages.make(BOOL, data=pressed))
    topic.node.spin_once()
    assert topic.pressed


@pytest.mark.parametrize("second_publisher", [True, False])
def test_without_identification_only_a_single_publisher_can_release(second_publisher: bool) -> None:
    topic = StopTopic(identifies=False)
    _, first = topic.open("button")
    if second_publisher:
        topic.open("fence")
    assert first(True)
    assert first(False) == second_publisher


def test_without_identification_a_later_publisher_cannot_release() -> None:
    topic = StopTopic(identifies=False)
    publisher, first = topic.open("button")
    assert first(True)
    publisher.close()
    assert topic.open("fence")[1](False)


@pytest.mark.parametrize("late", [False, True])
def test_a_subscription_gets_the_state_of_all_publishers_and_who_said_it(pair: Pair, late: bool) -> None:
    received: list[tuple[bytes | None, bool]] = []

    def listen() -> None:
        note = lambda message, *_: received.append((subscription.publisher, bool(message.data)))  # noqa: E731
        subscription = pair.listener.create_subscription("/estop", BOOL, STOP_QOS, note)

    publishers = [pair.talker.create_publisher("/estop", BOOL, "latched") for _ in range(2)]
    if not late:
        listen()
    for publisher, pressed in zip(publishers, (True, False), strict=True):
        publisher.publish(pair.talker.messages.make(BOOL, data=pressed))
    if late:
        listen()
    assert pair.listener.spin_until(lambda: len(received) == 2, 30) or len(received) == 2
    known = pair.listener.identifies_publishers
    assert set(received) == {(each.gid if known else None, n == 0) for n, each in enumerate(publishers)}
