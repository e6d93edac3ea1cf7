"""The environment variables of ROS 2, and what is made of them where no ROS 2 is installed.

They mean what they mean to rmw_cyclonedds of Jazzy. What this process cannot do is refused, never ignored. Imports the
standard library only.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from embodied_rl.interfaces.errors import UserError

Range = Literal["SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT"]
RANGES = ("SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT")
DOMAINS = range(0, 233)
"""Domain ids whose UDP ports exist; 102 to 214 lie among the ports that Linux gives to other programs."""
DDS = ("", "rmw_cyclonedds_cpp", "rmw_fastrtps_cpp", "rmw_fastrtps_dynamic_cpp", "rmw_connextdds")
"""Implementations of ROS 2's middleware that speak DDS; "" is the default, Fast DDS."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class RosEnvironment:
    """What the environment says.

    Attributes:
        domain: ROS_DOMAIN_ID.
        range: ROS_AUTOMATIC_DISCOVERY_RANGE: who may be found.
        peers: ROS_STATIC_PEERS: hosts that are asked besides.
        loopback: ROS_LOCALHOST_ONLY: only the loopback interface is used.
        distro: ROS_DISTRO, in lower case.
        tag: Cyclone DDS alone: participants of another tag are not seen. For tests.
    """

    domain: int = 0
    range: Range = "SUBNET"
    peers: tuple[str, ...] = ()
    loopback: bool = False
    distro: str = "jazzy"
    tag: str = ""


def read_environment(variables: Mapping[str, str] = os.environ) -> RosEnvironment:
    """Return what the environment variables of ROS 2 say.

    Raises:
        UserError: one has a value that ROS 2 does not know, or asks for what cannot be done here.
    """
    _refuse_security(variables)
    middleware = variables.get("RMW_IMPLEMENTATION", "")
    if middleware not in DDS:
        raise UserError(
            f"RMW_IMPLEMENTATION={middleware}: this transport speaks DDS, which that middleware does not. Start the "
            "robot's nodes with rmw_cyclonedds_cpp, or use transport=rclpy where ROS 2 is installed"
        )
    return RosEnvironment(
        domain=_read_domain(variables.get("ROS_DOMAIN_ID", "")),
        range=_read_range(variables.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "")),
        peers=_read_peers(variables.get("ROS_STATIC_PEERS", "")),
        loopback=_read_switch(variables, "ROS_LOCALHOST_ONLY"),
        distro=variables.get("ROS_DISTRO", "").lower() or "jazzy",
    )


def _refuse_security(variables: Mapping[str, str]) -> None:
    if variables.get("ROS_SECURITY_ENABLE", "").lower() not in ("", "false", "0"):
        raise UserError(
            "ROS_SECURITY_ENABLE is set: DDS from pip has no DDS Security, and would speak in the clear. Use "
            "transport=rclpy where ROS 2 is installed, or unset it where the network is trusted"
        )


def _read_domain(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text) in DOMAINS):
        raise UserError(f"ROS_DOMAIN_ID={text!r} is no domain: a whole number from 0 to {DOMAINS[-1]}, best up to 101")
    return int(text)


def _read_range(text: str) -> Range:
    if text and text not in RANGES:
        raise UserError(f"ROS_AUTOMATIC_DISCOVERY_RANGE={text!r} is none of {', '.join(RANGES)}")
    return cast(Range, text or "SUBNET")


def _read_peers(text: str) -> tuple[str, ...]:
    peers = tuple(peer.strip() for peer in text.split(";") if peer.strip())
    for peer in peers:
        if not (_is_address(peer) or _HOST.fullmatch(peer)):  # it becomes part of an XML text
            raise UserError(f"ROS_STATIC_PEERS: {peer!r} is neither an address nor a host name; separate them by ';'")
    return peers


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _read_switch(variables: Mapping[str, str], name: str) -> bool:
    text = variables.get(name, "")
    if text not in ("", "0", "1"):
        raise UserError(f"{name}={text!r} is neither 0 nor 1")
    return text == "1"
