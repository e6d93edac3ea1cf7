"""One process's end of torchrun's store, which every process of a launch reads and writes.

The store listens on every network, and whoever reaches it can write to it: it holds JSON alone, and nothing in it is
executed. `docs/security.md` says what that protects from.
"""

import json
import os
import time
from datetime import timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any

from torch import distributed

from embodied_rl.runtime.processes.handle import RunFailed
from embodied_rl.runtime.ranks import addresses
from embodied_rl.runtime.ranks.collective import GlooRanks, PeerLost, choose_gpu
from embodied_rl.runtime.ranks.torchrun_place import TorchrunPlace

_POLL = 0.05
_torch: Any = distributed  # its type stubs lack stores


class Intruded(RunFailed):
    """torchrun's store holds a value that no process of this run wrote."""

    def __init__(self, key: str, said: Any) -> None:
        shown = said[:16] if isinstance(said, bytes) else str(said)[:40]
        super().__init__(
            f"torchrun's store holds {shown!r} under '{key}', which none of this run's processes wrote: another "
            "program reaches it. Nothing of it was run. Keep MASTER_PORT from other users and networks."
        )


class StoreEnd:
    """One process's connection to torchrun's store.

    Attributes:
        place: the rank of this process, and the number of processes.
        store: keys and bytes that all processes see, including foreign processes that reach the store.
    """

    def __init__(self, place: TorchrunPlace, store: Any) -> None:
        self.place, self.store = place, store

    def tell(self, key: str, value: Any) -> None:
        """Write a JSON value under a key, for the other processes."""
        self.store.set(key, json.dumps(value).encode())

    def knows(self, key: str) -> bool:
        """Return whether a value has been written under a key."""
        return self.store.check([key])

    def ask(self, key: str, seconds: float | None = None, until: str | None = None) -> Any:
        """Wait for the value under a key and return it.

        Args:
            key: of the value.
            seconds: to wait; None waits as long as torchrun lets this process live.
            until: another key, whose arrival ends the wait.

        Raises:
            TimeoutError: the value did not arrive in time, or `until` arrived first.
            RunFailed: the value is not JSON, so no process of this run wrote it.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.knows(key):
            if (deadline is not None and time.monotonic() > deadline) or (until is not None and self.knows(until)):
                raise TimeoutError(key)
            time.sleep(_POLL)
        said = self.store.get(key)
        try:
            return json.loads(said)
        except ValueError:
            raise Intruded(key, said) from None

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
            raise PeerLost(f"rank {place.rank} did not meet the others within {timeout:g} s: {error}") from error


@cache
def open_store(place: TorchrunPlace) -> StoreEnd:
    """Return this process's connection to the store, which is opened once, and select this rank's GPU."""
    choose_gpu(place.local_rank)
    return StoreEnd(place, next(_torch.rendezvous("env://"))[0])


def find_own_address(there: StoreEnd, timeout: float) -> str:
    """Return this process's address, at which the other ranks reach it.

    It is the address of the interface that leads to MASTER_ADDR. If this is the loopback interface although other ranks
    are on other nodes, as on the node of MASTER_ADDR itself, it is that of the interface that leads to them.

    Raises:
        TimeoutError: another rank did not write its own address within `timeout` seconds.
    """
    place = there.place
    if name := os.environ.get(addresses.INTERFACE):
        return addresses.find_interface_address(name)
    mine = addresses.find_address_towards(os.environ["MASTER_ADDR"])
    there.tell(f"address/{place.rank}", mine)
    everybody = [_ip(there.ask(f"address/{rank}", timeout), rank) for rank in range(place.size)]
    elsewhere = [other for other in everybody if not addresses.is_loopback(other)]
    return addresses.find_address_towards(elsewhere[0]) if elsewhere and addresses.is_loopback(mine) else mine


def _ip(said: Any, rank: int) -> str:
    """Return an address that another rank wrote, after checking it.

    Raises:
        Intruded: the value is not an IP address.
    """
    try:
        return str(ip_address(said if isinstance(said, str) else ""))
    except ValueError:
        raise Intruded(f"address/{rank}", said) from None
