"""Client of torchrun's key-value store, which every process of a launch reads and writes, and network addresses.

The store listens on every network, and any program that reaches it can write to it. It holds only JSON, and nothing in
it is executed. `docs/security.md` describes what this protects against.
"""

import json
import os
import socket
import time
from datetime import timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any

import psutil
from torch import distributed

from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.runtime.ranks.collective import GlooRanks, PeerLost, choose_gpu
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace

_POLL = 0.05
_torch: Any = distributed  # its type stubs lack stores


class UnexpectedStoreEntry(RunFailed):
    """A value in torchrun's store that no process of this run wrote."""

    def __init__(self, key: str, value: Any) -> None:
        shown = value[:16] if isinstance(value, bytes) else str(value)[:40]
        super().__init__(
            f"torchrun's store holds {shown!r} under '{key}', which none of this run's processes wrote: another "
            "program reaches it. Nothing in it was executed. Keep MASTER_PORT from other users and networks."
        )


class StoreClient:
    """One process's connection to torchrun's store.

    Attributes:
        place: the rank of this process, and the number of processes.
        store: keys and bytes that all processes see, including foreign processes that reach the store.
    """

    def __init__(self, place: TorchrunPlace, store: Any) -> None:
        self.place, self.store = place, store

    def set(self, key: str, value: Any) -> None:
        """Write a JSON value under a key."""
        self.store.set(key, json.dumps(value).encode())

    def has(self, key: str) -> bool:
        """Return whether a value has been written under a key."""
        return self.store.check([key])

    def get(self, key: str, seconds: float | None = None, until: str | None = None) -> Any:
        """Wait for the value under a key and return it.

        Args:
            seconds: to wait; None waits without limit, until torchrun ends this process.
            until: another key; the wait ends if it has a value.

        Raises:
            TimeoutError: the value did not arrive in time, or `until` arrived first.
            RunFailed: the value is not JSON, so no process of this run wrote it.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.has(key):
            if (deadline is not None and time.monotonic() > deadline) or (until is not None and self.has(until)):
                raise TimeoutError(key)
            time.sleep(_POLL)
        data = self.store.get(key)
        try:
            return json.loads(data)
        except ValueError:
            raise UnexpectedStoreEntry(key, data) from None

    def join(self, timeout: float) -> GlooRanks:
        """Connect the ranks.

        Raises:
            PeerLost: another rank did not connect within `timeout` seconds.
        """
        place = self.place
        own = _torch.PrefixStore("embodied_rl", self.store)
        own.set_timeout(timedelta(seconds=timeout))
        try:
            return GlooRanks(place.rank, place.size, own, timeout, address=find_own_address(self, timeout))
        except RunFailed:
            raise
        except (RuntimeError, TimeoutError) as error:
            raise PeerLost(f"rank {place.rank} did not connect to the others within {timeout:g} s: {error}") from error


@cache
def open_store(place: TorchrunPlace) -> StoreClient:
    """Return this process's only client of the store, and select this rank's GPU."""
    choose_gpu(place.local_rank)
    return StoreClient(place, next(_torch.rendezvous("env://"))[0])


def find_own_address(store: StoreClient, timeout: float) -> str:
    """Return the address at which the other ranks reach this process.

    It is the address of the interface that leads to MASTER_ADDR. If this is the loopback interface although other ranks
    are on other nodes, as on the node of MASTER_ADDR itself, it is that of the interface that leads to them.

    Raises:
        TimeoutError: another rank did not write its address within `timeout` seconds.
        UnexpectedStoreEntry: an entry is not an IP address.
    """
    place = store.place
    if name := os.environ.get(INTERFACE):
        known = psutil.net_if_addrs()
        found = [entry.address for entry in known.get(name, ()) if entry.family == socket.AF_INET]
        if not found:
            raise UserError(
                f"{INTERFACE}={name}: no such interface with an address; there are {', '.join(known)}.",
                code="network-interface-unknown",
            )
        return found[0]
    mine = find_address_towards(os.environ["MASTER_ADDR"])
    store.set(f"address/{place.rank}", mine)
    remote: list[str] = []
    for key in [f"address/{rank}" for rank in range(place.size)]:
        value = store.get(key, timeout)
        try:
            address = str(ip_address(value if isinstance(value, str) else ""))
        except ValueError:
            raise UnexpectedStoreEntry(key, value) from None
        remote += [address] if not is_loopback(address) else []
    return find_address_towards(remote[0]) if remote and is_loopback(mine) else mine


INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment variable of torch that names the network interface to use."""


def find_address_towards(host: str) -> str:
    """Return this machine's address on the route to a host, without sending anything."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    with socket.socket(family, kind, protocol) as route:
        route.connect(target)
        return route.getsockname()[0]


def find_interface(address: str) -> str:
    """Return the name of the network interface that has an address."""
    known = psutil.net_if_addrs()
    return next(name for name, entries in known.items() if any(entry.address == address for entry in entries))


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address."""
    return address.startswith("127.") or address == "::1"
