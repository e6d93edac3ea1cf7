"""The environment variables of ROS 2, with the meaning that rmw_cyclonedds of Jazzy gives them.

Unsupported settings raise an error. Imports the standard library only.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from embodied_rl.interfaces.errors import UserError

Range = Literal["SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT"]
RANGES = get_args(Range)
DOMAINS = range(0, 233)
"""Valid domain ids. The ports of 102 to 214 overlap with Linux's ephemeral ports."""
DDS_MIDDLEWARES = ("", "rmw_cyclonedds_cpp", "rmw_fastrtps_cpp", "rmw_fastrtps_dynamic_cpp", "rmw_connextdds")
"""RMW implementations that use DDS; "" is the default, Fast DDS."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class RosEnvironment:
    """Domain, discovery and release of ROS 2.

    Attributes:
        domain: ROS_DOMAIN_ID.
        range: ROS_AUTOMATIC_DISCOVERY_RANGE.
        peers: ROS_STATIC_PEERS: additional hosts to discover.
        localhost_only: ROS_LOCALHOST_ONLY: use the loopback interface only.
        distro: ROS_DISTRO, in lower case.
        tag: Cyclone DDS discovery tag: participants with another tag are not discovered. For tests.
    """

    domain: int = 0
    range: Range = "SUBNET"
    peers: tuple[str, ...] = ()
    localhost_only: bool = False
    distro: str = "jazzy"
    tag: str = ""


def read_environment(variables: Mapping[str, str] = os.environ) -> RosEnvironment:
    """Read the environment variables of ROS 2; raises UserError: a value is invalid or not supported."""
    if variables.get("ROS_SECURITY_ENABLE", "").lower() not in ("", "false", "0"):
        raise UserError(
            "ROS_SECURITY_ENABLE is set: DDS from pip has no DDS Security and does not encrypt. Use transport=rclpy "
            "where ROS 2 is installed, or unset it if the network is trusted",
            code="ros-security-unsupported",
        )
    middleware = variables.get("RMW_IMPLEMENTATION", "")
    if middleware not in DDS_MIDDLEWARES:
        raise UserError(
            f"RMW_IMPLEMENTATION={middleware}: transport=dds needs a middleware that uses DDS. Start the robot's nodes "
            "with rmw_cyclonedds_cpp, or use transport=rclpy where ROS 2 is installed",
            code="middleware-unsupported",
        )
    domain = variables.get("ROS_DOMAIN_ID", "") or "0"
    if not (domain.isascii() and domain.isdigit() and int(domain) in DOMAINS):
        raise UserError(
            f"ROS_DOMAIN_ID={domain!r} must be an integer from 0 to {DOMAINS[-1]}, preferably up to 101",
            code="ros-domain-invalid",
        )
    discovery = variables.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "") or "SUBNET"
    if discovery not in RANGES:
        raise UserError(
            f"ROS_AUTOMATIC_DISCOVERY_RANGE={discovery!r} is none of {', '.join(RANGES)}",
            code="discovery-range-unknown",
        )
    localhost_only = variables.get("ROS_LOCALHOST_ONLY", "")
    if localhost_only not in ("", "0", "1"):
        raise UserError(f"ROS_LOCALHOST_ONLY={localhost_only!r} is neither 0 nor 1", code="localhost-only-invalid")
    peers = tuple(peer.strip() for peer in variables.get("ROS_STATIC_PEERS", "").split(";") if peer.strip())
    for peer in peers:
        try:
            ipaddress.ip_address(peer)
        except ValueError:
            if not _HOST.fullmatch(peer):  # it is inserted into XML
                raise UserError(
                    f"ROS_STATIC_PEERS: {peer!r} is neither an address nor a host name; separate them by ';'",
                    code="peer-invalid",
                ) from None
    return RosEnvironment(
        domain=int(domain),
        range=cast(Range, discovery),
        peers=peers,
        localhost_only=localhost_only == "1",
        distro=variables.get("ROS_DISTRO", "").lower() or "jazzy",
    )
