"""A rank in an actor: one thread runs a function, another sends the rank's output to the driver."""

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from embodied_rl.runtime.processes.arrays import Packed, pack, unpack
from embodied_rl.runtime.ranks.collective import LOOPBACK, GlooRanks, Ranks, StopRequests, make_store
from embodied_rl.runtime.ranks.launch import RankFailure, Stopped, describe_failure
from embodied_rl.runtime.ray import cluster, hosting


@dataclass(frozen=True)
class RankJob:
    """The function that one of `size` ranks runs, and how it connects to the others.

    Attributes:
        threads: of torch.
        timeout: seconds that ranks wait for each other.
        loopback: whether all ranks are on one node.
        address, port: of rank 0's store.
    """

    function: Callable[[Any, Ranks], Any]
    config: Any
    rank: int
    size: int
    threads: int
    timeout: float
    loopback: bool
    address: str
    port: int


@dataclass(frozen=True)
class RankOutcome:
    """The outcome of a rank: the result of its function, or its failure, or that it stopped on request."""

    result: Any = None
    failure: RankFailure | None = None
    stopped: bool = False


class RankHost:
    """Hosts a rank for `launch`.

    Args:
        place: bundle of this process in a reservation.
    """

    def __init__(self, place: cluster.BundlePlace | None):
        hosting.PLACE[:] = [] if place is None else [place]
        self._stops, self._output = StopRequests(), RankOutput()
        self._store: Any = None

    def hello(self) -> dict[str, Any]:
        """Return the greeting of this process; see `hosting.make_greeting`."""
        return hosting.make_greeting()

    def host_store(self, size: int, timeout: float, loopback: bool) -> tuple[str, int]:
        """Host the store through which ranks connect, on rank 0; return its address and port."""
        address = LOOPBACK if loopback else cluster.find_own_address()
        self._store = make_store(size, timeout, address=address)
        return address, self._store.port

    def run(self, packed: Packed) -> Packed:
        """Run a packed `RankJob` and return its packed `RankOutcome`."""
        rank = 0
        try:
            job: RankJob = unpack(packed)
            rank = job.rank
            torch.set_num_threads(job.threads)
            ranks = Ranks()
            if job.size > 1:
                own = LOOPBACK if job.loopback else cluster.find_own_address()
                store = self._store or make_store(job.size, job.timeout, job.port, job.address)
                ranks = GlooRanks(rank, job.size, store, job.timeout, own)
            ranks.stops = self._stops
            with self._output.copied() if rank == 0 else nullcontext():
                return pack(RankOutcome(job.function(job.config, ranks)))
        except Stopped:
            return pack(RankOutcome(stopped=True))
        except Exception as error:  # noqa: BLE001  a process border
            return pack(RankOutcome(failure=describe_failure(rank, error)))

    @cluster.run_in_thread("monitor")
    def output(self) -> list[tuple[int, str]]:
        """Return the output since the last call as (1 for standard output or 2 for standard error, text) pairs."""
        return self._output.take()

    @cluster.run_in_thread("monitor")
    def stop(self) -> str:
        """Request a stop of rank 0 and return its reaction; see `StopRequests.request`."""
        return self._stops.request()


class RankOutput:
    """Copy of the output of a process for the driver; the output is still written as usual."""

    def __init__(self) -> None:
        self._lock, self._texts = threading.Lock(), list[tuple[int, str]]()

    def take(self) -> list[tuple[int, str]]:
        """Return all texts that were not taken before."""
        with self._lock:
            taken, self._texts = self._texts, []
        return taken

    def add(self, stream: int, text: str) -> None:
        """Add a text that was written to a stream."""
        with self._lock:
            self._texts.append((stream, text))

    @contextmanager
    def copied(self) -> Iterator[None]:
        """Copy the output that is written in the context."""
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _CopiedStream(self, 1, sys.stdout), _CopiedStream(self, 2, sys.stderr)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class _CopiedStream(io.TextIOBase):
    def __init__(self, output: RankOutput, stream: int, original: Any):
        self._output, self._stream, self._original = output, stream, original

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._output.add(self._stream, text)
        return self._original.write(text)

    def flush(self) -> None:
        self._original.flush()
