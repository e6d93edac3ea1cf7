"""Environment variables of ROS 2, and the configuration of Cyclone DDS made from them."""

import xml.etree.ElementTree as ET

import pytest

from embodied_rl.deployment.transport.dds_domain import make_configuration
from embodied_rl.deployment.transport.environment import RosEnvironment, read_environment
from tests.support.refusals import refuses


def read(configuration: str) -> ET.Element:
    return ET.fromstring(configuration)


def texts(configuration: str, path: str) -> list[str | None]:
    return [element.text for element in read(configuration).iterfind(f"Domain/{path}")]


def test_defaults_are_domain_0_subnet_and_jazzy() -> None:
    assert read_environment({}) == RosEnvironment(0, "SUBNET", (), False, "jazzy")


def test_all_variables_are_read() -> None:
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
    ("variables", "code", "data"),
    [
        ({"ROS_DOMAIN_ID": "x"}, "ros-domain-invalid", ["ROS_DOMAIN_ID='x'", 232]),
        ({"ROS_DOMAIN_ID": "233"}, "ros-domain-invalid", ["ROS_DOMAIN_ID='233'"]),
        ({"ROS_DOMAIN_ID": "-1"}, "ros-domain-invalid", ["ROS_DOMAIN_ID='-1'"]),
        (
            {"ROS_AUTOMATIC_DISCOVERY_RANGE": "HOST"},
            "discovery-range-unknown",
            ["'HOST'", "SUBNET, LOCALHOST, OFF, SYSTEM_DEFAULT"],
        ),
        ({"ROS_STATIC_PEERS": "1.2.3.4;<x>"}, "peer-invalid", ["ROS_STATIC_PEERS: '<x>'"]),
        ({"ROS_LOCALHOST_ONLY": "yes"}, "localhost-only-invalid", ["ROS_LOCALHOST_ONLY='yes'"]),
        ({"ROS_SECURITY_ENABLE": "true"}, "ros-security-unsupported", ["ROS_SECURITY_ENABLE", "transport=rclpy"]),
        ({"RMW_IMPLEMENTATION": "rmw_zenoh_cpp"}, "middleware-unsupported", ["RMW_IMPLEMENTATION=rmw_zenoh_cpp"]),
    ],
)
def test_unsupported_values_are_refused(variables: dict[str, str], code: str, data: list[object]) -> None:
    with refuses(code, *data):
        read_environment(variables)


def test_subnet_uses_multicast() -> None:
    made = make_configuration(RosEnvironment(peers=("10.0.0.2",)), "")
    assert texts(made, "General/AllowMulticast") == [] == texts(made, "General/Interfaces/NetworkInterface")
    assert [peer.get("Address") for peer in read(made).iter("Peer")] == ["10.0.0.2"]


@pytest.mark.parametrize("environment", [RosEnvironment(range="LOCALHOST"), RosEnvironment(localhost_only=True)])
def test_localhost_uses_the_loopback_interface_only(environment: RosEnvironment) -> None:
    made = make_configuration(environment, "")
    assert texts(made, "General/AllowMulticast") == ["false"]
    assert [each.get("address") for each in read(made).iter("NetworkInterface")] == ["127.0.0.1"]
    assert [each.get("Address") for each in read(made).iter("Peer")] == ["127.0.0.1"]


def test_discovery_off_disables_discovery() -> None:
    made = make_configuration(RosEnvironment(range="OFF", peers=("10.0.0.2",)), "")
    assert texts(made, "General/AllowMulticast") == ["false"] and not list(read(made).iter("Peer"))
    (tag,) = texts(made, "Discovery/Tag")
    assert tag is not None and tag.startswith("ros_discovery_off_")


def test_overrides_come_last() -> None:
    assert make_configuration(RosEnvironment(), "<CycloneDDS/>").endswith("</CycloneDDS>,<CycloneDDS/>")
