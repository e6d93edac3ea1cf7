"""An emergency stop that several may press: nobody releases what another one pressed."""

from collections.abc import Callable
from typing import Any

import pytest

from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.interface import Publisher
from embodied_rl.deployment.transport.stop_holders import STOP_QOS, StopHolders
from tests.support.transports import Pair

BOOL = "std_msgs/msg/Bool"


class Hall:
    """A listener, and whoever presses; `tells`: the transport says who published a message."""

    def __init__(self, tells: bool = True) -> None:
        self.bus, self.holders = Bus(iter(range(10**6)).__next__), StopHolders()
        self.node = InProcessTransport(self.bus, "robot")
        self.subscription = self.node.create_subscription("/estop", BOOL, STOP_QOS, self.hear)
        self.tells, self.pressed = tells, False

    def hear(self, message: Any, received_ns: int, source_ns: int) -> None:
        if not self.tells:
            self.subscription.publisher = None
        self.pressed = self.holders.hear(self.subscription, bool(message.data))

    def open(self, name: str) -> tuple[Publisher, Callable[[bool], bool]]:
        """Return a publisher of a new node, and what says something by it and returns whether the stop is pressed."""
        publisher = InProcessTransport(self.bus, name).create_publisher("/estop", BOOL, "latched")

        def say(pressed: bool) -> bool:
            publisher.publish(self.node.messages.make(BOOL, data=pressed))
            self.node.spin_once()
            return self.pressed

        return publisher, say


def test_each_releases_what_it_pressed_itself() -> None:
    hall = Hall()
    (_, first), (_, second) = hall.open("button"), hall.open("fence")
    assert not second(False) and first(True) and second(False), "it has not pressed it"
    assert second(True) and first(False) and "/fence" in hall.holders.explain(hall.subscription)
    assert not second(False) and not hall.holders.explain(hall.subscription)


def test_one_that_has_gone_holds_it_on() -> None:
    hall = Hall()
    (publisher, first), (_, second) = hall.open("button"), hall.open("fence")
    assert first(True)
    publisher.close()
    assert second(False) and second(True) and second(False)
    said = "/estop: the emergency stop is pressed by a node that has gone"
    assert hall.holders.explain(hall.subscription) == said


def test_a_press_is_heard_though_another_ones_word_follows_before_anybody_reads() -> None:
    hall = Hall()
    first, second = (hall.open(name)[0] for name in ("button", "fence"))
    for publisher, pressed in ((first, True), (second, False)):
        publisher.publish(hall.node.messages.make(BOOL, data=pressed))
    hall.node.spin_once()
    assert hall.pressed


@pytest.mark.parametrize("second_is_there", [True, False])
def test_where_the_transport_does_not_tell_who_spoke_one_alone_can_release_it(second_is_there: bool) -> None:
    hall = Hall(tells=False)
    _, first = hall.open("button")
    if second_is_there:
        hall.open("fence")
    assert first(True)
    assert first(False) == second_is_there


def test_where_the_transport_does_not_tell_who_spoke_a_successor_is_another_one() -> None:
    hall = Hall(tells=False)
    publisher, first = hall.open("button")
    assert first(True)
    publisher.close()
    assert hall.open("fence")[1](False)


def test_a_transport_tells_who_published_what_or_says_that_it_does_not(pair: Pair) -> None:
    heard: list[tuple[bytes | None, bool]] = []
    note = lambda message, *_: heard.append((subscription.publisher, bool(message.data)))  # noqa: E731
    subscription = pair.listener.create_subscription("/estop", BOOL, STOP_QOS, note)
    publishers = [pair.talker.create_publisher("/estop", BOOL, "latched") for _ in range(2)]
    for publisher, pressed in zip(publishers, (True, False), strict=True):
        publisher.publish(pair.talker.messages.make(BOOL, data=pressed))
    assert pair.listener.spin_until(lambda: len(heard) == 2, 30) or len(heard) == 2
    expected = {(each.gid if pair.listener.tells_publishers else None, n == 0) for n, each in enumerate(publishers)}
    assert set(heard) == expected


def test_who_comes_late_hears_all_that_hold_it(pair: Pair) -> None:
    publishers = [pair.talker.create_publisher("/estop", BOOL, "latched") for _ in range(2)]
    for publisher, pressed in zip(publishers, (True, False), strict=True):
        publisher.publish(pair.talker.messages.make(BOOL, data=pressed))
    heard: list[bool] = []
    pair.listener.create_subscription("/estop", BOOL, STOP_QOS, lambda message, *_: heard.append(bool(message.data)))
    assert pair.listener.spin_until(lambda: len(heard) == 2, 30) or len(heard) == 2
    assert sorted(heard) == [False, True]
