"""Ranks that torchrun started: `torchrun --nproc-per-node 4 -m embodied_rl train …`, on one node or several.

torchrun starts the same command line as many processes and gives each a rank. Rank 0 alone reads what was typed, says
what is wrong with it, makes the run's folder, and prints; over torchrun's store it hands every `launch` to the others,
which do nothing but what it hands out, and end with its exit code. What they raise, it tells.

torchrun signals everybody: rank 0 decides what comes of it and the others ignore it while they take part. Its agent
kills what has not ended 30 s after a signal; TORCH_ELASTIC_SHUTDOWN_TIMEOUT (seconds) gives an iteration longer.

Over several nodes the run's folder must be one that all of them see.
"""

import io
import logging
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from itertools import count
from typing import Any, TypeVar

import torch
from torch import distributed

from embodied_rl.runtime import addresses
from embodied_rl.runtime import ranks as local
from embodied_rl.runtime.collective import GlooRanks, PeerLost, Ranks
from embodied_rl.runtime.handle import WorkerDied
from embodied_rl.runtime.place import FAILED, Place
from embodied_rl.runtime.process import STOP_SIGNALS
from embodied_rl.runtime.ranks import GRACE, Failure, RankFailed

Config = TypeVar("Config")
Result = TypeVar("Result")
AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""Whether torchrun's agent hosts the store; otherwise rank 0 does, such as where variables were set by hand."""
LATER = 0.5
"""Seconds by which others end after rank 0 where something failed: torchrun calls who ends first the root cause."""
_POLL = 0.05
_torch: Any = distributed  # its type stubs lack stores


@dataclass(frozen=True)
class _Job:
    """What rank 0 asks of the others; `epoch` turns the clock of another node into that of rank 0's."""

    function: Callable[[Any, Ranks], Any]
    config: Any
    timeout: float
    epoch: float


@dataclass(frozen=True)
class _End:
    code: int


class Meeting:
    """One process's end of torchrun's store.

    Attributes:
        place: which process of how many.
        store: keys and bytes that all of them see.
        jobs: handed out so far.
    """

    def __init__(self, place: Place, store: Any) -> None:
        self.place, self.store, self.jobs = place, store, 0

    def tell(self, key: str, value: Any) -> None:
        """Leave a value for the others."""
        self.store.set(key, pickle.dumps(value))

    def knows(self, key: str) -> bool:
        """Whether somebody has left it."""
        return self.store.check([key])

    def ask(self, key: str, seconds: float | None = None) -> Any:
        """The value, once it is there; TimeoutError where it was not in time."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self.knows(key):
            if until is not None and time.monotonic() > until:
                raise TimeoutError(key)
            time.sleep(_POLL)
        return pickle.loads(self.store.get(key))

    def join(self, timeout: float) -> GlooRanks:
        """Connect this job's ranks.

        Raises:
            PeerLost: another rank did not come within `timeout` seconds.
        """
        place = self.place
        own = _torch.PrefixStore(f"embodied_rl/{self.jobs}", self.store)
        own.set_timeout(timedelta(seconds=timeout))
        try:
            return GlooRanks(place.rank, place.size, own, timeout, address=address(self))
        except RuntimeError as error:
            raise PeerLost(f"rank {place.rank} did not meet the others within {timeout:g} s: {error}") from error


@dataclass(frozen=True)
class Follower:
    """Another rank as rank 0 asks after it, with the methods of a `ChildProcess` that tell how it fared."""

    meeting: Meeting
    rank: int

    def ready(self) -> bool:
        """Whether it has reported."""
        return self.meeting.knows(self._key)

    def receive(self, timeout: float, doing: str) -> Failure | None:
        """Its report: how it failed, or None.

        Raises:
            WorkerDied: there is none.
        """
        try:
            return self.meeting.ask(self._key, timeout)
        except TimeoutError:
            how = "reported nothing: it was killed, or hangs. Where it ended, torchrun's summary says how."
            raise WorkerDied(f"rank {self.rank} {how}") from None

    @property
    def _key(self) -> str:
        return _report(self.meeting.jobs, self.rank)


@dataclass(frozen=True)
class _Seat:
    """Where rank 0 sits; see `embodied_rl.runtime.ranks.lead`."""

    meeting: Meeting
    timeout: float

    def join(self, store: object = None) -> GlooRanks:
        return self.meeting.join(self.timeout)


@cache
def meeting(place: Place) -> Meeting:
    """This process's end of the store, connected once."""
    if torch.cuda.is_available():
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())  # what device "cuda" means from now on
    return Meeting(place, next(_torch.rendezvous("env://"))[0])


def run(place: Place, lead: Callable[[], int]) -> int:
    """What a process of torchrun does; returns its exit code.

    Args:
        place: which process of how many.
        lead: what rank 0 does, and what the others' exit code is read from.
    """
    there = meeting(place)
    if place.rank > 0:
        return _follow(there)
    code = FAILED
    try:
        code = lead()
    finally:
        there.tell(_order(there.jobs), _End(code))
        if os.environ.get(AGENT) != "True":  # the store ends with this process
            _wait_for_all(there)
    return code


def _wait_for_all(there: Meeting) -> None:
    until = time.monotonic() + GRACE
    for rank in range(1, there.place.size):
        with suppress(TimeoutError):
            there.ask(f"left/{rank}", max(0.0, until - time.monotonic()))


def launcher() -> Callable[..., Any]:
    """`launch` where torchrun started this process, and otherwise that of `embodied_rl.runtime.ranks`."""
    return local.launch if Place.here() is None else launch


def launch(
    function: Callable[[Config, Ranks], Result],
    config: Config,
    size: int,
    *,
    timeout: float = 300.0,
    threads: int | None = None,
) -> Result:
    """Run `function(config, ranks)` on torchrun's processes; called on rank 0. See `embodied_rl.runtime.ranks.launch`.

    Raises:
        ValueError: `size` is not how many torchrun started.
        RankFailed: another rank failed first.
        Exception: what this rank's function raised, when that came first.
    """
    place = Place.here()
    assert place is not None and place.rank == 0, "rank 0 of torchrun launches"
    place.check(size, ", as when the run began")
    if threads is not None:
        torch.set_num_threads(threads)
    if size == 1:
        return function(config, Ranks())
    there = meeting(place)
    there.tell(_order(there.jobs), _Job(function, config, timeout, time.time() - time.monotonic()))
    others: list[Any] = [Follower(there, rank) for rank in range(1, size)]
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        return local.lead(partial(_lead, function), config, _Seat(there, timeout), None, others)
    except KeyboardInterrupt:  # torchrun's way to end us, perhaps because another rank failed
        _raise_failure(others)
        raise
    finally:
        there.jobs += 1
        for number, handler in before.items():
            signal.signal(number, handler)


def _lead(function: Callable[[Config, Ranks], Result], config: Config, ranks: Ranks) -> Result:
    """A rank 0 that lives to tell: torchrun ends all at once where a process is gone."""
    try:
        return function(config, ranks)
    except Exception:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise


def _raise_failure(others: list[Any]) -> None:
    """What another rank has reported by now, where it is the cause of something."""
    failures = [failure for other in others if other.ready() and (failure := other.receive(0.0, "the end"))]
    causes = [failure for failure in failures if not failure.cascade]
    if causes:
        first = min(causes, key=lambda failure: failure.time)
        raise first.error or RankFailed(f"rank {first.rank} failed first:\n{first.message}") from None


def _follow(there: Meeting) -> int:
    """Take part in what rank 0 hands out, until it says that all is over; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # between jobs a signal ends this process at once
    failure: Failure | None = None
    for _ in count():
        try:
            order = there.ask(_order(there.jobs), None if failure is None else GRACE)
        except (TimeoutError, RuntimeError):  # rank 0 is gone and cannot tell, or the store with it
            if failure is not None and not failure.cascade:
                print(failure.message, file=sys.stderr)
            return FAILED
        if isinstance(order, _End):
            there.tell(f"left/{there.place.rank}", None)
            time.sleep(LATER if order.code else 0.0)
            return order.code
        with _silent(), _deaf():
            failure = _take_part(there, order)
        with suppress(RuntimeError):  # where the store is gone, the next question says so
            there.tell(_report(there.jobs, there.place.rank), failure)
        there.jobs += 1
    raise AssertionError("count() does not end")


def _take_part(there: Meeting, job: _Job) -> Failure | None:
    joined = None
    try:
        joined = there.join(job.timeout)
        job.function(job.config, joined)
    except Exception as error:  # noqa: BLE001  a process border
        failure = local.failure_of(there.place.rank, error)
        return replace(failure, time=failure.time + time.time() - time.monotonic() - job.epoch)
    finally:
        if joined is not None:
            joined.leave()
    return None


@contextmanager
def _silent() -> Iterator[None]:
    """Rank 0 speaks for all; what ends a process, such as a fault in a library, still shows."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = _quiet_logging(100)
        try:
            yield
        finally:
            _quiet_logging(before)


def _quiet_logging(level: int) -> int:
    before = logging.root.manager.disable
    logging.disable(level)
    return before


@contextmanager
def _deaf() -> Iterator[None]:
    """Leave SIGINT and SIGTERM to rank 0."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address(there: Meeting) -> str:
    """This process's address, at which the other ranks reach it.

    It is that of the interface that leads to MASTER_ADDR. Where this is the loopback interface although others come
    from elsewhere, as on the node of MASTER_ADDR itself, it is that of the interface that leads to them.
    """
    place = there.place
    if name := os.environ.get(addresses.INTERFACE):
        return addresses.of_interface(name)
    mine = addresses.towards(os.environ["MASTER_ADDR"])
    there.tell(f"address/{place.rank}", mine)
    everybody = [there.ask(f"address/{rank}") for rank in range(place.size)]
    elsewhere = [other for other in everybody if not addresses.is_loopback(other)]
    return addresses.towards(elsewhere[0]) if elsewhere and addresses.is_loopback(mine) else mine


def _order(job: int) -> str:
    return f"order/{job}"


def _report(job: int, rank: int) -> str:
    return f"report/{job}/{rank}"
