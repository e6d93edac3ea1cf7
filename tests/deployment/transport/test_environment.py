"""What the environment variables of ROS 2 mean without ROS 2."""

import xml.etree.ElementTree as ET

import pytest

from embodied_rl.deployment.transport.dds_configuration import configure
from embodied_rl.deployment.transport.environment import RosEnvironment, read_environment
from embodied_rl.interfaces.errors import UserError


def read(configuration: str) -> ET.Element:
    return ET.fromstring(configuration)


def texts(configuration: str, path: str) -> list[str | None]:
    return [element.text for element in read(configuration).iterfind(f"Domain/{path}")]


def test_nothing_set_is_the_subnet_of_domain_0_and_jazzy() -> None:
    assert read_environment({}) == RosEnvironment(0, "SUBNET", (), False, "jazzy")


def test_what_is_set_is_read() -> None:
    found = read_environment({
        "ROS_DOMAIN_ID": "42",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "ROS_STATIC_PEERS": "192.168.1.2; robot.local;fe80::1;",
        "ROS_LOCALHOST_ONLY": "1",
        "ROS_DISTRO": "kilted",
        "RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp",
        "ROS_SECURITY_ENABLE": "false",
    })  # fmt: skip
    assert found == RosEnvironment(42, "LOCALHOST", ("192.168.1.2", "robot.local", "fe80::1"), True, "kilted")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"ROS_DOMAIN_ID": "x"}, "ROS_DOMAIN_ID='x' is no domain: a whole number from 0 to 232"),
        ({"ROS_DOMAIN_ID": "233"}, "ROS_DOMAIN_ID='233' is no domain"),
        ({"ROS_DOMAIN_ID": "-1"}, "ROS_DOMAIN_ID='-1' is no domain"),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "HOST"}, "'HOST' is none of SUBNET, LOCALHOST, OFF, SYSTEM_DEFAULT"),
        ({"ROS_STATIC_PEERS": "1.2.3.4;<x>"}, "ROS_STATIC_PEERS: '<x>' is neither an address nor a host name"),
        ({"ROS_LOCALHOST_ONLY": "yes"}, "ROS_LOCALHOST_ONLY='yes' is neither 0 nor 1"),
        ({"ROS_SECURITY_ENABLE": "true"}, "ROS_SECURITY_ENABLE is set: DDS from pip has no DDS Security"),
        ({"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"}, "RMW_IMPLEMENTATION=rmw_zenoh_cpp: this transport speaks DDS"),
    ],
)
def test_what_cannot_be_followed_is_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_environment(variables)


def test_a_subnet_is_searched_by_multicast() -> None:
    made = configure(RosEnvironment(peers=("10.0.0.2",)), "")
    assert texts(made, "General/AllowMulticast") == [] == texts(made, "General/Interfaces/NetworkInterface")
    assert [peer.get("Address") for peer in read(made).iter("Peer")] == ["10.0.0.2"]


@pytest.mark.parametrize("environment", [RosEnvironment(range="LOCALHOST"), RosEnvironment(loopback=True)])
def test_this_machine_alone_is_searched_on_its_loopback_interface(environment: RosEnvironment) -> None:
    made = configure(environment, "")
    assert texts(made, "General/AllowMulticast") == ["false"]
    assert [each.get("address") for each in read(made).iter("NetworkInterface")] == ["127.0.0.1"]
    assert [each.get("Address") for each in read(made).iter("Peer")] == ["127.0.0.1"]


def test_no_discovery_is_none() -> None:
    made = configure(RosEnvironment(range="OFF", peers=("10.0.0.2",)), "")
    assert texts(made, "General/AllowMulticast") == ["false"] and not list(read(made).iter("Peer"))
    (tag,) = texts(made, "Discovery/Tag")
    assert tag is not None and tag.startswith("ros_discovery_off_")


def test_what_cyclone_is_told_by_hand_comes_last_and_wins() -> None:
    assert configure(RosEnvironment(), "<CycloneDDS/>").endswith("</CycloneDDS>,<CycloneDDS/>")
