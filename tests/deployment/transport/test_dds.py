"""Requirements and errors of the DDS transport, and its announcement to ROS 2."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cyclonedds.domain import DomainParticipant
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

from embodied_rl.deployment.transport import extras, raw_cdr
from embodied_rl.deployment.transport.dds import DdsTransport
from embodied_rl.deployment.transport.dds_discovery import DdsTypes, make_qos
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.messages import DISTROS, Messages
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.deployment.transport.qos import PROFILES, QoS
from embodied_rl.interfaces.errors import TransportError
from embodied_rl.interfaces.sim import Unavailable
from tests.support.refusals import refuses
from tests.support.transports import HAS_ROS, JOINTS, LONG_S, borrow_environment

INFO = "rmw_dds_common/msg/ParticipantEntitiesInfo"


@pytest.fixture
def node(environment: RosEnvironment) -> Iterator[DdsTransport]:
    with DdsTransport(environment, "our_node") as node:
        yield node


@pytest.mark.parametrize("distro", ["jazzy", "humble"])
def test_endpoints_are_announced_to_ros(environment: RosEnvironment, distro: str) -> None:
    messages = Messages(distro)
    with DdsTransport(replace(environment, distro=distro), "our_node") as node:
        publisher = node.create_publisher("/a", JOINTS, "state")
        subscription = node.create_subscription("/b", JOINTS, "state", print)
        with_info = read_discovery_info(node, environment.domain, messages)
    assert bytes(with_info.gid.data[:16]) == node.gid
    (entities,) = with_info.node_entities_info_seq
    assert (entities.node_namespace, entities.node_name) == ("/", "our_node")
    size = 24 if distro == "humble" else 16
    assert [bytes(each.data) for each in entities.writer_gid_seq] == [publisher.gid.ljust(size, b"\0")]
    assert [bytes(each.data) for each in entities.reader_gid_seq] == [subscription.gid.ljust(size, b"\0")]


def read_discovery_info(node: DdsTransport, domain: int, messages: Messages) -> Any:
    """Read the announcements that a new ROS 2 node gets."""
    participant = DomainParticipant(domain)
    topic = Topic(participant, "ros_discovery_info", DdsTypes(messages).find(INFO))
    reader = DataReader(participant, topic, make_qos(PROFILES["latched"].requested, messages.hash_type(INFO)))
    found: list[Any] = []

    def read() -> bool:
        found.extend(messages.decode(INFO, raw) for raw, *_ in raw_cdr.take(reader, 10))
        return any(bytes(each.gid.data[:16]) == node.gid for each in found)

    assert node.spin_until(read, LONG_S)
    return next(each for each in reversed(found) if bytes(each.gid.data[:16]) == node.gid)


def test_dds_names_follow_ros(node: DdsTransport) -> None:
    publisher = node.create_publisher("/arm/joint_states", JOINTS, QoS(depth=7))
    assert publisher.gid in {each.gid for each in node.list_publishers("/arm/joint_states")}
    (topic,) = node._topics.values()
    assert (topic.name, topic.typename) == ("rt/arm/joint_states", "sensor_msgs::msg::dds_::JointState_")


def test_invalid_bytes_are_not_sent(node: DdsTransport) -> None:
    publisher = node.create_publisher("/a", JOINTS, QoS())
    with pytest.raises(TransportError, match="/a: a message was not published"):
        publisher.send(b"\0\1\0\0" + b"\xff" * 40)


def test_a_domain_has_one_configuration_in_a_process(node: DdsTransport, environment: RosEnvironment) -> None:
    with refuses("dds-domain-configured-otherwise", environment.domain):
        DdsTransport(replace(environment, tag="another"), "other")


def test_a_domain_can_be_opened_again_with_another_configuration() -> None:
    with borrow_environment() as mine:
        for tag in ("first", "second"):
            with DdsTransport(replace(mine, tag=tag), "node") as node:
                assert node.create_publisher("/a", JOINTS, QoS()).count_matched() == 0


def test_an_invalid_configuration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CYCLONEDDS_URI", "<CycloneDDS><Domain><Nonsense>1</Nonsense></Domain></CycloneDDS>")
    with borrow_environment() as mine, refuses("dds-domain-not-opened", mine.domain, "CYCLONEDDS_URI"):
        DdsTransport(mine, "node")


def test_other_versions_of_cyclone_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.metadata, "version", lambda package: "0.10.5")
    assert raw_cdr.__file__ is not None
    spec = importlib.util.spec_from_file_location("another", raw_cdr.__file__)
    assert spec is not None and spec.loader is not None
    with pytest.raises(Unavailable, match=r"cyclonedds 0\.10\.5.* 11\.0\.1.*: pip install"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_missing_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(package: str) -> str:
        raise extras.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(extras.metadata, "version", miss)
    with pytest.raises(Unavailable, match=r"^transport=dds needs cyclonedds, .*: pip install embodied-rl-robot$"):
        open_transport("dds")


@pytest.mark.skipif(HAS_ROS, reason="rclpy is installed")
def test_missing_rclpy_names_the_remedy() -> None:
    with pytest.raises(Unavailable, match=r"transport=rclpy .* or use transport=dds"):
        open_transport("rclpy")


def test_an_unknown_transport_is_refused() -> None:
    with refuses("transport-unknown", "'zenoh'", "dds, rclpy"):
        open_transport("zenoh")


def test_an_invalid_node_name_is_refused(environment: RosEnvironment) -> None:
    with refuses("node-name-invalid", "'my node'"):
        open_transport("dds", "my node", environment)


def test_waiting_messages_are_taken_in_batches(node: DdsTransport) -> None:
    got: list[float] = []
    node.create_subscription("/a", JOINTS, QoS(depth=200), lambda message, *_: got.append(message.position[0]))
    publisher = node.create_publisher("/a", JOINTS, QoS(depth=200))
    for step in range(150):
        publisher.publish(node.messages.make(JOINTS, position=np.array([step], dtype=float)))
    assert [node.spin_once(1.0) for _ in range(3)] == [64, 64, 22]
    assert got == list(range(150)) and node.spin_once() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("distro", DISTROS)
def test_every_type_of_every_release_has_its_dds_type(distro: str) -> None:
    messages = Messages(distro)
    types = DdsTypes(messages)
    for type_name in messages.list_types():
        package, _, name = type_name.split("/")
        made, empty = types.find(type_name), messages.encode(type_name, messages.make(type_name))
        assert made.__idl_typename__ == f"{package}::msg::dds_::{name}_"
        assert bytes(made.deserialize(empty + bytes(-len(empty) % 4)).serialize())[4:].strip(b"\0") == empty[4:].strip(
            b"\0"
        )


@pytest.mark.thorough
@pytest.mark.process
def test_optional_packages_are_imported_lazily() -> None:
    code = (
        "import sys; from embodied_rl.deployment.transport import opening, in_process, environment; "
        "from embodied_rl.benchmarks import dds_loopback; "
        "print({'cyclonedds', 'rosbags', 'torch', 'rclpy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
