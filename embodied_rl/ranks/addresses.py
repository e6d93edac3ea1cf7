"""This machine's addresses: which of them others can reach it at, and which network interface has it."""

import socket

import psutil

from embodied_rl.interfaces.errors import UserError

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Names the network interface to use, where the one that leads to the others is not the right one; as in torch."""


def find_address_towards(host: str) -> str:
    """This machine's address on the way to a host; nothing is sent."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    with socket.socket(family, kind, protocol) as route:
        route.connect(target)
        return route.getsockname()[0]


def find_interface_address(name: str) -> str:
    """The address of a network interface.

    Raises:
        UserError: there is none of that name, or it has none.
    """
    known = psutil.net_if_addrs()
    found = [entry.address for entry in known.get(name, ()) if entry.family == socket.AF_INET]
    if not found:
        raise UserError(f"{INTERFACE}={name}: no such interface with an address; there are {', '.join(known)}.")
    return found[0]


def find_interface(address: str) -> str:
    """The name of the network interface that has an address."""
    known = psutil.net_if_addrs()
    return next(name for name, entries in known.items() if any(entry.address == address for entry in entries))


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    return address.startswith("127.") or address == "::1"
