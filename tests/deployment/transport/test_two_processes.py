"""The DDS transport between two processes over the loopback interface."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import TransportError
from tests.support.echoing_node import KEPT, TYPES
from tests.support.transports import LONG_S, borrow_environment

pytestmark = [pytest.mark.process, pytest.mark.thorough]


def start_echo(environment: RosEnvironment) -> "subprocess.Popen[str]":
    """Start the other process with this one's environment variables."""
    values = json.dumps({"domain": environment.domain, "tag": environment.tag})
    command = [sys.executable, "-m", "tests.support.echoing_node", values]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def echo(environment: RosEnvironment) -> Iterator["subprocess.Popen[str]"]:
    process = start_echo(environment)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def node(environment: RosEnvironment) -> Iterator[Transport]:
    with open_transport("dds", "test", environment) as node:
        yield node


def exchange(node: Transport, name: str, messages: list[Any]) -> list[Any]:
    """Send messages to the other process and return the replies, after greetings that may be lost.

    A newly matched reliable subscription begins with the publisher's first heartbeat.
    """
    got: list[Any] = []
    greeted: list[Any] = []

    def note(message: Any, *_: int) -> None:
        (greeted if message.header.frame_id == "greeting" else got).append(message)

    subscription = node.create_subscription(f"/pong/{name}", TYPES[name], KEPT, note)
    publisher = node.create_publisher(f"/ping/{name}", TYPES[name], KEPT)
    assert node.spin_until(lambda: subscription.count_matched() == 1 == publisher.count_matched(), LONG_S)
    deadline = time.monotonic() + LONG_S
    while not greeted and time.monotonic() < deadline:
        publisher.publish(node.messages.make(TYPES[name], header={"frame_id": "greeting"}))
        node.spin_until(lambda: bool(greeted), 0.1)
    for message in messages:
        publisher.publish(message)
        node.spin_once()
    assert node.spin_until(lambda: len(got) == len(messages), LONG_S), len(got)
    return got


def test_the_other_process_is_discovered_while_it_runs(
    node: Transport, echo: "subprocess.Popen[str]", environment: RosEnvironment
) -> None:
    mine = node.create_publisher("/status", "std_msgs/msg/String", "latched")
    others = lambda: [each for each in node.list_publishers("/status") if not each.own]  # noqa: E731
    assert node.spin_until(lambda: len(others()) == 1, LONG_S)
    assert node.spin_until(lambda: [each.node for each in others()] == ["/echo"], LONG_S)
    (theirs,) = others()
    assert theirs.gid != mine.gid and theirs.qos == QoS("reliable", "transient_local")
    assert theirs.type_hash == node.messages.hash_type("std_msgs/msg/String")
    subscription = node.create_subscription("/mute", "std_msgs/msg/String", QoS("reliable"), print)
    assert node.spin_until(lambda: bool(subscription.find_mismatches()), LONG_S)
    assert "offers best_effort, the subscription requests reliable" in subscription.find_mismatches()[0]
    echo.communicate(timeout=LONG_S)
    assert echo.returncode == 0
    assert node.spin_until(lambda: others() == [], LONG_S)


def test_commands_do_not_wait_for_a_killed_process(node: Transport, echo: "subprocess.Popen[str]") -> None:
    """It is removed after 10 s; until then a reliable publisher keeps only the newest message for it."""
    publisher = node.create_publisher("/ping/joints", TYPES["joints"], "command")
    assert node.spin_until(lambda: publisher.count_matched() == 1, LONG_S)
    echo.kill()
    echo.wait(LONG_S)
    command = node.messages.make(TYPES["joints"], position=np.zeros(100))
    for _ in range(2000):  # 1.6 MB, more than the buffer of Cyclone DDS
        publisher.publish(command)


def test_a_restarted_process_is_discovered(node: Transport, environment: RosEnvironment) -> None:
    found: list[bytes] = []
    for _ in range(2):
        process = start_echo(environment)
        try:
            sent = [node.messages.make(TYPES["joints"], position=[step]) for step in range(3)]
            assert [each.position[0] for each in exchange(node, "joints", sent)] == [0, 1, 2]
            found += [each.gid for each in node.list_publishers("/pong/joints") if each.gid not in found]
        finally:
            process.communicate(timeout=LONG_S)
    assert len(found) == 2


def test_lost_messages_are_retransmitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cyclone DDS drops 5 % of the datagrams on both sides."""
    lossy = (
        "<CycloneDDS><Domain><Internal><Test><XmitLossiness>50</XmitLossiness></Test></Internal></Domain></CycloneDDS>"
    )
    monkeypatch.setenv("CYCLONEDDS_URI", lossy)
    with borrow_environment() as environment, open_transport("dds", "test", environment) as node:
        process = start_echo(environment)
        try:
            sent = [node.messages.make(TYPES["joints"], position=[step]) for step in range(200)]
            assert [each.position[0] for each in exchange(node, "joints", sent)] == list(range(200))
            picture = np.random.default_rng(2).integers(0, 256, 480 * 640 * 3, dtype=np.uint8)
            (got,) = exchange(node, "image", [node.messages.make(TYPES["image"], data=picture)])
            assert np.array_equal(got.data, picture)
        finally:
            process.kill()
            process.communicate()


def test_invalid_datagrams_are_ignored(node: Transport, echo: object, environment: RosEnvironment) -> None:
    """Random datagrams, half of them with an RTPS header."""
    random, first = np.random.default_rng(3), 7400 + 250 * environment.domain
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise:
        for size in random.integers(0, 1400, 3000):
            header = b"RTPS\2\1\1\x10" if size % 2 else b""
            port = first + 10 + int(random.integers(0, 8))  # of the first participants, discovery and data
            noise.sendto(header + random.bytes(int(size)), ("127.0.0.1", port))
    sent = [node.messages.make(TYPES["joints"], position=[step]) for step in range(20)]
    assert [each.position[0] for each in exchange(node, "joints", sent)] == list(range(20))


def test_exceptions_of_the_spinning_thread_are_raised(node: Transport, echo: object) -> None:
    def fail(*_: object) -> None:
        raise KeyError("arm")

    node.create_subscription("/status", "std_msgs/msg/String", "latched", fail)
    node.start()
    for use in (node.spin_once, node.start):
        with pytest.raises(TransportError, match="test already spins in a thread"):
            use()
    assert node.spin_until(lambda: node.failure is not None, LONG_S)
    with pytest.raises(KeyError, match="arm"):
        node.close()
