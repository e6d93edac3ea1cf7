"""One rank in an actor: one thread runs a function, another sends the rank's output to the driver."""

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from embodied_rl.runtime.processes.arrays import Packed, pack, unpack
from embodied_rl.runtime.ranks.collective import LOOPBACK, GlooRanks, Ranks, StopRequests, make_store
from embodied_rl.runtime.ranks.launch import RankFailure, Stopped, describe_failure
from embodied_rl.runtime.ray import cluster, hosting


@dataclass(frozen=True)
class MeetingPoint:
    """The address and port of rank 0's store, where ranks connect; `loopback` says that all are on one node."""

    size: int
    timeout: float
    loopback: bool
    address: str = ""
    port: int = 0


@dataclass(frozen=True)
class RankJob:
    """The function that a rank runs, with its config and the number of torch threads."""

    function: Callable[[Any, Ranks], Any]
    config: Any
    rank: int
    meeting: MeetingPoint
    threads: int


@dataclass(frozen=True)
class RankOutcome:
    """The outcome of a rank: the result of its function, or its failure, or that it stopped on request."""

    result: Any = None
    failure: RankFailure | None = None
    stopped: bool = False


class RankHost:
    """Hosts a rank for `launch`.

    Args:
        place: place of this process in a reservation.
    """

    def __init__(self, place: cluster.BundlePlace | None):
        hosting.PLACE[:] = [] if place is None else [place]
        self._stops, self._said = StopRequests(), RankOutput()
        self._store: Any = None

    def hello(self) -> dict[str, Any]:
        """Return the greeting of this process; see `hosting.make_greeting`."""
        return hosting.make_greeting()

    def meet(self, size: int, timeout: float, loopback: bool) -> tuple[str, int]:
        """Host the store through which ranks connect, on rank 0; return its address and port."""
        address = LOOPBACK if loopback else cluster.find_own_address()
        self._store = make_store(size, timeout, address=address)
        return address, self._store.port

    def run(self, packed: Packed) -> Packed:
        """Run a packed `RankJob` and return its packed `RankOutcome`."""
        outcome = self._run(packed)
        try:
            return pack(outcome)
        except Exception as error:  # noqa: BLE001  a process border
            return pack(RankOutcome(failure=describe_failure(0, error)))

    @cluster.run_in_thread("desk")
    def said(self) -> list[tuple[int, str]]:
        """Return the output since the last call as (1 for standard output or 2 for standard error, text) pairs."""
        return self._said.take()

    @cluster.run_in_thread("desk")
    def stop(self) -> str:
        """Request a stop of rank 0 and return its reaction; see `StopRequests.request`."""
        return self._stops.request()

    def _run(self, packed: Packed) -> RankOutcome:
        rank = 0
        try:
            job: RankJob = unpack(packed)
            rank = job.rank
            torch.set_num_threads(job.threads)
            ranks = self._join(job)
            with self._said.heard(rank == 0):
                return RankOutcome(job.function(job.config, ranks))
        except Stopped:
            return RankOutcome(stopped=True)
        except Exception as error:  # noqa: BLE001  a process border
            failure = describe_failure(rank, error)
            return RankOutcome(failure=failure)

    def _join(self, job: RankJob) -> Ranks:
        meeting = job.meeting
        if meeting.size == 1:
            ranks = Ranks()
        else:
            own = LOOPBACK if meeting.loopback else cluster.find_own_address()
            store = self._store or make_store(meeting.size, meeting.timeout, meeting.port, meeting.address)
            ranks = GlooRanks(job.rank, meeting.size, store, meeting.timeout, own)
        ranks.stops = self._stops
        return ranks


class RankOutput:
    """Keeps a copy of the output of a process for the driver; the output is still written as usual."""

    def __init__(self) -> None:
        self._lock, self._texts = threading.Lock(), list[tuple[int, str]]()

    def take(self) -> list[tuple[int, str]]:
        """Return all texts that were not taken before."""
        with self._lock:
            taken, self._texts = self._texts, []
        return taken

    def note(self, stream: int, text: str) -> None:
        """Keep a text of a stream."""
        with self._lock:
            self._texts.append((stream, text))

    @contextmanager
    def heard(self, whether: bool) -> Iterator[None]:
        """Keep the output that is written in the context, if `whether` is true."""
        before = sys.stdout, sys.stderr
        if whether:
            sys.stdout, sys.stderr = _Heard(self, 1, sys.stdout), _Heard(self, 2, sys.stderr)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class _Heard(io.TextIOBase):
    def __init__(self, said: RankOutput, stream: int, beyond: Any):
        self._kept, self._stream, self._beyond = said, stream, beyond

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._kept.note(self._stream, text)
        return self._beyond.write(text)

    def flush(self) -> None:
        self._beyond.flush()
