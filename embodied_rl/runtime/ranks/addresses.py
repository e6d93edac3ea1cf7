"""Network addresses and interfaces of this machine."""

import socket

import psutil

from embodied_rl.interfaces.errors import UserError

INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment variable of torch that names the network interface to use."""


def find_address_towards(host: str) -> str:
    """Return this machine's address on the route to a host, without sending anything."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    with socket.socket(family, kind, protocol) as route:
        route.connect(target)
        return route.getsockname()[0]


def find_interface_address(name: str) -> str:
    """Return the IPv4 address of a network interface.

    Raises:
        UserError: no interface has that name, or the interface has no IPv4 address.
    """
    known = psutil.net_if_addrs()
    found = [entry.address for entry in known.get(name, ()) if entry.family == socket.AF_INET]
    if not found:
        raise UserError(
            f"{INTERFACE}={name}: no such interface with an address; there are {', '.join(known)}.",
            code="network-interface-unknown",
        )
    return found[0]


def find_interface(address: str) -> str:
    """Return the name of the network interface that has an address."""
    known = psutil.net_if_addrs()
    return next(name for name, entries in known.items() if any(entry.address == address for entry in entries))


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address."""
    return address.startswith("127.") or address == "::1"
