"""Launcher of symmetric ranks on this machine, which finds the rank that failed first.

Each rank simulates, infers and learns on its share of the environments; `collective.py` averages their gradients.
"""

import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime.processes.handle import NoAnswer, WorkerDied
from embodied_rl.runtime.processes.messages import receive, send
from embodied_rl.runtime.processes.process import ChildProcess
from embodied_rl.runtime.processes.worker import prepare_child
from embodied_rl.runtime.ranks.collective import GlooRanks, PeerLost, Ranks, choose_gpu, make_store
from embodied_rl.system.signals import handle_stop_signals, reraise_ignored_exceptions

__all__ = ["PeerLost", "RankFailed", "Ranks", "Stopped", "launch_ranks", "raise_on_signals", "stop_on_signals"]

Config = TypeVar("Config")
Result = TypeVar("Result")
START_TIMEOUT = 120.0
GRACE = 10.0
STOPPING = b"\nStopping after this iteration; a second signal leaves at once, without saving.\n"


class RankFailed(RunFailed):
    """Another rank failed first. The message holds its traceback, or how its process ended."""


@dataclass(frozen=True)
class RankFailure:
    """The failure of a rank: `time` is on the monotonic clock of all processes; `cascade`: another rank caused it.

    `error` is the raised exception, if its message is complete without a traceback: a non-finite number, or a
    `UserError`. `silent`: the rank did not answer until it was killed; it may have waited for another one.
    """

    rank: int
    time: float
    cascade: bool
    message: str
    error: Exception | None = None
    silent: bool = False


def launch_ranks(
    function: Callable[[Config, Ranks], Result],
    config: Config,
    size: int,
    *,
    timeout: float = 300.0,
    threads: int | None = None,
) -> Result:
    """Run `function(config, ranks)` on `size` ranks. Rank 0 is this process; the others end when it ends.

    Args:
        function: importable by name from its module.
        config: picklable.
        size: number of ranks.
        timeout: seconds that ranks wait for each other; choose more than the largest lag between ranks.
        threads: torch threads of each rank if there are several; by default an equal share of the cores.

    Returns:
        The result of rank 0's function, after all ranks are done.

    Raises:
        RankFailed: another rank failed first.
        Exception: this rank's function failed first.
    """
    if size == 1:
        return function(config, Ranks())
    threads = threads or max(1, (os.cpu_count() or 1) // size)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        store = make_store(size, timeout)
        children = []
        for rank in range(1, size):
            log = stack.enter_context(tempfile.TemporaryFile())
            child = ChildProcess(f"rank {rank}", f"{__name__}:run_rank", log, timeout, threads=threads)
            stack.callback(child.stop)
            children.append(child)
        try:
            for rank, child in enumerate(children, start=1):
                child.send((rank, size, store.port, timeout, threads, function, config), "start")
            for child in children:
                child.receive(START_TIMEOUT, "start")
        except WorkerDied as death:
            raise RankFailed(str(death)) from None
        return lead_ranks(function, config, lambda: GlooRanks(0, size, store, timeout), timeout, children)


@contextmanager
def stop_on_signals(ranks: Ranks) -> Iterator[Callable[[], bool]]:
    """Set a flag when SIGINT, SIGTERM or SIGHUP reaches rank 0; yield a function that reads it.

    The other ranks ignore signals. A second SIGINT or SIGTERM ends the run at once. Ranks agree with
    `ranks.any_(stop_requested())`.
    """
    if ranks.stops is not None:
        with ranks.stops.listen("flag"):
            yield ranks.stops.requested
        return
    requested = threading.Event()
    if ranks.rank > 0 or threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def request(*_: object) -> None:
        requested.set()
        restore()
        os.write(2, STOPPING)

    with handle_stop_signals(request) as restore:
        yield requested.is_set


class Stopped(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP arrived while everything is saved, so that the run can stop at once."""


@contextmanager
def raise_on_signals(ranks: Ranks) -> Iterator[None]:
    """Raise `Stopped` on rank 0 at SIGINT, SIGTERM or SIGHUP in the context; rank 0 then ends the others.

    An extension may replace it by another exception: torch raises ValueError if a signal arrives while it determines a
    shape. Each exception after a signal is therefore raised as `Stopped`.
    """
    if ranks.stops is not None:
        with ranks.stops.listen("raise"):
            yield
        return
    if ranks.rank > 0 or threading.current_thread() is not threading.main_thread():
        yield
        return

    raised = threading.Event()

    def stop(*_: object) -> None:
        raised.set()
        raise Stopped

    with handle_stop_signals(stop), reraise_ignored_exceptions(Stopped):
        try:
            yield
        except Exception as error:
            if raised.is_set():
                raise Stopped from error
            raise


def run_rank() -> None:
    """Run rank 1 or above; this is the entry point of its process."""
    with Connection(prepare_child()) as pipe:
        rank, size, port, timeout, threads, function, config = receive(pipe)
        torch.set_num_threads(threads)
        choose_gpu(rank)
        send(pipe, "ready")
        failure = None
        try:
            function(config, GlooRanks(rank, size, make_store(size, timeout, port), timeout))
        except Exception as error:  # noqa: BLE001  a process border
            failure = describe_failure(rank, error)
        send(pipe, failure)
        if failure is None:  # wait until rank 0 closes the pipe or is gone: it may still read from this rank
            pipe.poll(None)


def lead_ranks(
    function: Callable[[Config, Ranks], Result],
    config: Config,
    join: Callable[[], Ranks],
    timeout: float,
    children: list[ChildProcess],
) -> Result:
    """Run `function(config, ranks)` on rank 0, wait for the reports of the others, and raise the first failure.

    `join` connects rank 0 to the others; `timeout` is how long ranks wait for each other, in seconds.
    """
    try:
        result = function(config, join())
    except Exception as error:
        mine = describe_failure(0, error)
        # A configuration error fails on every rank: rank 0 then raises its own error.
        first = mine if isinstance(error, UserError) else find_first_cause(mine, children)
        if first is mine:
            raise
        if first.error is not None:
            raise first.error from None
        if first.silent:
            message = f"rank {first.rank} failed first, or waited for rank 0:\n{first.message}\n{mine.message}"
            raise RankFailed(message) from None
        raise RankFailed(f"rank {first.rank} failed first:\n{first.message}") from None
    for rank, child in enumerate(children, start=1):
        failure = _wait_for_outcome(rank, child, timeout)
        if failure is not None:
            raise failure.error or RankFailed(f"rank {rank} failed at the end:\n{failure.message}")
    return result


def _wait_for_outcome(rank: int, child: ChildProcess, seconds: float) -> RankFailure | None:
    """Wait for the report of another rank. Return its failure, or None if it succeeded."""
    try:
        return child.receive(seconds, "training")
    except WorkerDied as death:
        return RankFailure(rank, time.monotonic(), False, str(death), silent=isinstance(death, NoAnswer))


def describe_failure(rank: int, error: Exception) -> RankFailure:
    """Return the failure of a rank that raised `error`."""
    complete = error if isinstance(error, UserError | FloatingPointError | Unavailable) else None
    text = str(error) if isinstance(error, RunFailed | Unavailable) else "".join(traceback.format_exception(error))
    return RankFailure(rank, time.monotonic(), isinstance(error, PeerLost), text, complete)


def find_first_cause(mine: RankFailure, children: list[ChildProcess]) -> RankFailure:
    """Return the earliest failure of all ranks that no other rank caused, or `mine` if there is none."""
    failures = [mine]
    until = time.monotonic() + GRACE
    for rank, child in enumerate(children, start=1):
        if not mine.cascade and not child.ready():
            continue
        failure = _wait_for_outcome(rank, child, max(0.1, until - time.monotonic()))
        failures += [failure] if failure is not None else []
    return find_earliest_cause(failures) or mine


def find_earliest_cause(failures: Iterable[RankFailure]) -> RankFailure | None:
    """Return the earliest failure that no other rank caused, or None if there is none."""
    return min((failure for failure in failures if not failure.cascade), key=lambda failure: failure.time, default=None)
