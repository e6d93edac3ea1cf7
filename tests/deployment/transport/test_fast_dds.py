"""The DDS transport against Fast DDS of Debian, in a small program that is built here."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.interface import Subscription, Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.deployment.transport.qos import QoS
from tests.support.transports import JOINTS, LONG_S, borrow_domain

pytestmark = [pytest.mark.process, pytest.mark.thorough]

SOURCE = Path(__file__).parent / "fastdds_peer" / "peer.cpp"
IMAGE = "sensor_msgs/msg/Image"
TOPICS = {"joints": ("/joint_states", JOINTS), "image": ("/camera/image_raw", IMAGE)}
Peer = Callable[..., "subprocess.Popen[str]"]
RELIABILITIES = ["reliable", "best_effort"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None or not Path("/usr/include/fastdds/dds/topic/TopicDataType.hpp").exists():
        pytest.skip("Fast DDS is not installed: apt-get install libfastrtps-dev g++")
    program = tmp_path_factory.mktemp("fastdds") / "peer"
    subprocess.run(["g++", "-std=c++17", "-o", program, SOURCE, "-lfastrtps", "-lfastcdr"], check=True, timeout=280)
    return program


@pytest.fixture
def domain() -> Iterator[int]:
    with borrow_domain() as domain:
        yield domain


@pytest.fixture
def node(domain: int) -> Iterator[Transport]:
    """A node without a tag, which only Cyclone DDS has."""
    with open_transport("dds", "ours", RosEnvironment(domain=domain, range="LOCALHOST")) as node:
        yield node


@pytest.fixture
def peer(program: Path, domain: int) -> Iterator[Peer]:
    started: list[subprocess.Popen[str]] = []

    def start(does: str, what: str, reliability: str, count: int) -> "subprocess.Popen[str]":
        command = [str(program), does, what, reliability, str(domain), str(count)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def begin(node: Transport, subscription: Subscription, process: "subprocess.Popen[str]") -> None:
    """Let the process publish once it is matched."""
    assert node.spin_until(lambda: subscription.count_matched() == 1, LONG_S), subscription.find_mismatches()
    start_publishing(process)


def start_publishing(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def check_order(numbers: list[int], reliability: str) -> None:
    """Check the order, and for reliable topics that only the first message may be lost.

    A reliable volatile subscription begins with the publisher's first heartbeat, which may overtake fragments of the
    first image.
    """
    assert numbers == sorted(set(numbers)) and numbers
    assert reliability == "best_effort" or (numbers == list(range(numbers[0], numbers[-1] + 1)) and numbers[0] <= 1)


@pytest.mark.parametrize("reliability", RELIABILITIES)
@pytest.mark.parametrize("what", TOPICS)
def test_messages_of_fast_dds_arrive(node: Transport, peer: Peer, what: str, reliability: Any) -> None:
    got: list[Any] = []
    subscription = node.create_subscription(*TOPICS[what], QoS(reliability, depth=50), lambda *of: got.append(of[0]))
    process, wanted = peer("publish", what, reliability, 20), 19 if reliability == "reliable" else 3
    begin(node, subscription, process)
    assert node.spin_until(lambda: len(got) >= wanted, LONG_S), (len(got), subscription.find_mismatches())
    headers = {(each.header.stamp.sec, each.header.stamp.nanosec, each.header.frame_id) for each in got}
    assert headers == {(7, 8, "base")}
    if what == "joints":
        check_order([int(each.position[0]) for each in got], reliability)
        assert all((each.name, each.position[1]) == (["shoulder", "elbow"], -0.5) for each in got)
        assert all((each.velocity.tolist(), each.effort.tolist()) == ([], [1.5]) for each in got)
    else:
        check_order([int(each.data[0]) for each in got], reliability)
        ramp = np.arange(480 * 1920)
        assert all(np.array_equal(each.data, (ramp + each.data[0]).astype(np.uint8)) for each in got)
    assert process.communicate(timeout=LONG_S) == ("sent 20\n", "") and process.returncode == 0


@pytest.mark.parametrize("reliability", RELIABILITIES)
@pytest.mark.parametrize("what", TOPICS)
def test_messages_arrive_at_fast_dds(node: Transport, peer: Peer, what: str, reliability: Any) -> None:
    publisher = node.create_publisher(*TOPICS[what], QoS(reliability, depth=50))
    most, wanted = (20, 19) if reliability == "reliable" else (250, 3)
    process = peer("subscribe", what, reliability, wanted)
    assert process.stdout is not None and process.stdout.readline() == "matched\n"
    assert node.spin_until(lambda: publisher.count_matched() == 1, LONG_S), publisher.find_mismatches()
    for step in range(most):
        publisher.publish(make_message(node, what, step))
        node.spin_until(lambda: False, 0.02)
        if process.poll() is not None:
            break
    out, errors = process.communicate(timeout=LONG_S + 60)
    assert process.returncode == 0, out + errors
    form = r"joints base a bc (\d+) 0.25 \| 0 1" if what == "joints" else r"image 640x480 rgb8 whole (\d+)"
    check_order([int(number) for number in re.findall(form, out)], reliability)
    assert len(out.splitlines()) == len(re.findall(form, out)) == wanted


def make_message(node: Transport, what: str, step: int) -> Any:
    make = node.messages.make
    if what == "joints":
        return make(JOINTS, header={"frame_id": "base"}, name=["a", "bc"], position=[step, 0.25], effort=[1.0])
    data = (np.arange(480 * 1920) + step).astype(np.uint8)
    return make(IMAGE, height=480, width=640, encoding="rgb8", step=1920, data=data)


def test_incompatible_qos_is_reported(node: Transport, peer: Peer) -> None:
    got: list[Any] = []
    subscription = node.create_subscription("/joint_states", JOINTS, QoS("reliable"), lambda *of: got.append(of))
    peer("publish", "joints", "best_effort", 1)
    assert node.spin_until(lambda: bool(subscription.find_mismatches()), LONG_S)
    (fault,) = subscription.find_mismatches()
    assert "the publisher offers best_effort, the subscription requests reliable" in fault and got == []


def test_invalid_messages_are_discarded(node: Transport, peer: Peer) -> None:
    """Cyclone DDS checks each message against its type."""
    got: list[Any] = []
    subscription = node.create_subscription("/joint_states", JOINTS, QoS(depth=50), lambda *of: got.append(of[0]))
    process = peer("publish", "garbage", "reliable", 20)
    begin(node, subscription, process)
    assert process.stdout is not None and process.stdout.readline() == "sent 20\n"
    valid = peer("publish", "joints", "reliable", 3)
    assert node.spin_until(lambda: subscription.count_matched() == 2, LONG_S)
    start_publishing(valid)
    assert node.spin_until(lambda: len(got) == 3, LONG_S)
    assert [each.position[0] for each in got] == [0, 1, 2] and subscription.refused == 0
    for each in (process, valid):
        each.communicate(timeout=LONG_S)
        assert each.returncode == 0
