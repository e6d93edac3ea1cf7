"""Ranks that torchrun started: `torchrun --nproc-per-node 4 -m embodied_rl train …`, on one node or several.

torchrun starts the same command line in several processes and gives each a rank. Each process reads its configuration
from the command line. Rank 0 makes the run's folder, announces it through torchrun's store, prints, and handles
signals. The other ranks take part, and end with rank 0's exit code. Rank 0 reports their errors.

Every process that reaches the store can read and write it, and the store listens on every network. It holds JSON that
names a folder, addresses and failures, and nothing that is run. `docs/security.md` says what this protects from.

torchrun sends signals to all processes: rank 0 handles them, and the others ignore them while they take part. Its agent
kills processes that have not ended 30 s after a signal; set TORCH_ELASTIC_SHUTDOWN_TIMEOUT (seconds) to wait longer.

On several nodes, all nodes must see the run's folder.
"""

import io
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime.processes.handle import WorkerDied
from embodied_rl.runtime.processes.signals import STOP_SIGNALS, handle_stop_signals
from embodied_rl.runtime.ranks import launch as local
from embodied_rl.runtime.ranks.collective import GlooRanks, Ranks
from embodied_rl.runtime.ranks.launch import GRACE, RankFailed, RankFailure
from embodied_rl.runtime.ranks.torchrun_place import FAILED, TorchrunPlace
from embodied_rl.runtime.ranks.torchrun_store import Intruded, StoreEnd, open_store

Config = TypeVar("Config")
Result = TypeVar("Result")
AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""Whether torchrun's agent hosts the store; otherwise rank 0 does, such as where variables were set by hand."""
LATER = 0.5
"""Seconds by which others end after rank 0 where something failed: torchrun calls who ends first the root cause."""
_JOINED, _END, _DECISION = "launch", "end", "decision"
_ERRORS = {kind.__name__: kind for kind in (UserError, FloatingPointError, Unavailable)}
"""What a failure may be raised as on rank 0; its text alone travels."""


class LeaderEnded(BaseException):
    """Rank 0 has ended. This is a `BaseException`, so that only `_follow` catches it."""


@dataclass(frozen=True)
class Follower:
    """Another rank as rank 0 sees it, with the methods of a `ChildProcess` that report its outcome."""

    meeting: StoreEnd
    rank: int

    def ready(self) -> bool:
        """Return whether the rank has reported its outcome."""
        return self.meeting.knows(_report(self.rank))

    def await_begin(self, seconds: float) -> None:
        """Wait until the rank is about to take part, or has failed before that.

        Raises:
            WorkerDied: the rank did neither within `seconds`.
        """
        with suppress(TimeoutError):
            self.meeting.ask(_begun(self.rank), seconds, until=_report(self.rank))
            return
        if not self.ready():
            raise WorkerDied(f"rank {self.rank} did not begin within {seconds:g} s.")

    def receive(self, timeout: float, doing: str) -> RankFailure | None:
        """Wait for the rank's report and return its failure, or None if it succeeded.

        Raises:
            WorkerDied: the rank did not report within `timeout` seconds.
        """
        try:
            said = self.meeting.ask(_report(self.rank), timeout)
        except TimeoutError:
            how = "reported nothing: it was killed, or hangs. Where it ended, torchrun's summary says how."
            raise WorkerDied(f"rank {self.rank} {how}") from None
        return None if said is None else _failure(self.rank, said)


@dataclass(frozen=True)
class _Seat:
    """The `RankPlace` of rank 0; see `embodied_rl.runtime.ranks.launch.lead_ranks`."""

    meeting: StoreEnd
    timeout: float

    def join(self, store: object = None) -> GlooRanks:
        return self.meeting.join(self.timeout)


def run_process(place: TorchrunPlace, lead: Callable[[], int], follow: Callable[[], object]) -> int:
    """Run a process of torchrun and return its exit code.

    Args:
        place: the rank of this process, and the number of processes.
        lead: function of rank 0; its return value is the exit code of all processes.
        follow: function of the other ranks; rank 0 reports the errors that it raises.
    """
    there = open_store(place)
    if place.rank > 0:
        return _follow(there, follow)
    code = FAILED
    try:
        code = lead()
    finally:
        there.tell(_END, code)
        if os.environ.get(AGENT) != "True":  # the store ends with this process
            _wait_for_all(there)
    return code


def decide_on_rank_0(decide: Callable[[], Any]) -> Any:
    """Call `decide` on rank 0, or here without torchrun, and return its value on every process; use it once in a run.

    Args:
        decide: called on rank 0 alone; returns a JSON value.
    """
    place = TorchrunPlace.find()
    if place is None or place.size == 1:
        return decide()
    there = open_store(place)
    if place.rank == 0:
        value = decide()
        there.tell(_DECISION, value)
        return value
    return _ask_rank_0(there, _DECISION)


def launch_here(
    function: Callable[[Config, Ranks], Result],
    config: Config,
    size: int,
    *,
    timeout: float = 300.0,
    threads: int | None = None,
) -> Result:
    """Run `function(config, ranks)` as one of torchrun's processes. All processes call this once.

    See `embodied_rl.runtime.ranks.launch.launch_ranks`.

    Raises:
        UserError: `size` is not the number of processes that torchrun started.
        RankFailed: another rank failed first.
        Exception: this rank's function failed first.
    """
    place = TorchrunPlace.find()
    assert place is not None, "torchrun started this process"
    place.check(size, ", as when the run began")
    if threads is not None:
        torch.set_num_threads(threads)
    if size == 1:
        return function(config, Ranks())
    there = open_store(place)
    if place.rank > 0:
        return _take_part(there, function, config, timeout)
    others: list[Any] = [Follower(there, rank) for rank in range(1, size)]
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        for other in others:
            other.await_begin(timeout)
        _raise_failure(others)
        there.tell(_JOINED, True)
        return local.lead_ranks(partial(_lead, function), config, _Seat(there, timeout), None, others)
    except KeyboardInterrupt:  # torchrun's way to end us, perhaps because another rank failed
        _raise_failure(others)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def choose_launcher() -> Callable[..., Any]:
    """Return `launch_here` if torchrun started this process, otherwise `runtime.ranks.launch.launch_ranks`."""
    return local.launch_ranks if TorchrunPlace.find() is None else launch_here


def _wait_for_all(there: StoreEnd) -> None:
    until = time.monotonic() + GRACE
    for rank in range(1, there.place.size):
        with suppress(TimeoutError):
            there.ask(f"left/{rank}", max(0.0, until - time.monotonic()))


def _lead(function: Callable[[Config, Ranks], Result], config: Config, ranks: Ranks) -> Result:
    """Run the function on rank 0. After an error ignore torchrun's stop signals, so that rank 0 can still report."""
    try:
        return function(config, ranks)
    except Exception:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise


def _raise_failure(others: list[Any]) -> None:
    """Raise the earliest failure that other ranks have reported by now and that no other rank caused."""
    failures = [failure for other in others if other.ready() and (failure := other.receive(0.0, "the end"))]
    causes = [failure for failure in failures if not failure.cascade]
    if causes:
        first = min(causes, key=lambda failure: failure.time)
        raise first.error or RankFailed(f"rank {first.rank} failed first:\n{first.message}") from None


def _follow(there: StoreEnd, follow: Callable[[], object]) -> int:
    """Run `follow` without output, then wait until rank 0 ends; return rank 0's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before it takes part, a signal ends this process at once
    failure = None
    with _silent():
        try:
            follow()
        except LeaderEnded:
            pass
        except _Reported as reported:
            failure = reported.failure
        except Exception as error:  # noqa: BLE001  a process border
            failure = local.describe_failure(there.place.rank, error)
            _tell_report(there, failure)
    try:
        code = there.ask(_END, None if failure is None else GRACE)
        if not isinstance(code, int):
            raise Intruded(_END, code)
    except (TimeoutError, RuntimeError):  # rank 0 is gone and cannot report, or the store is gone too
        if failure is not None and not failure.cascade:
            print(failure.message, file=sys.stderr)
        return FAILED
    there.tell(f"left/{there.place.rank}", None)
    time.sleep(LATER if code else 0.0)
    return code


class _Reported(BaseException):
    """The failure of this rank, already reported to rank 0."""

    def __init__(self, failure: RankFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _take_part(there: StoreEnd, function: Callable[[Config, Ranks], Result], config: Config, timeout: float) -> Result:
    there.tell(_begun(there.place.rank), True)
    _ask_rank_0(there, _JOINED)
    joined = None
    with handle_stop_signals(signal.SIG_IGN):  # rank 0 handles signals
        try:
            joined = there.join(timeout)
            result = function(config, joined)
        except Exception as error:  # noqa: BLE001  a process border
            failure = local.describe_failure(there.place.rank, error)
            if joined is not None:
                joined.leave()
            _tell_report(there, failure)
            raise _Reported(failure) from None
        joined.leave()
        with suppress(RuntimeError):  # if the store is gone, the next request raises
            there.tell(_report(there.place.rank), None)
        return result


def _ask_rank_0(there: StoreEnd, key: str) -> Any:
    """Wait for rank 0's value under a key and return it.

    Raises:
        LeaderEnded: rank 0 has ended instead.
    """
    try:
        return there.ask(key, until=_END)
    except TimeoutError:
        raise LeaderEnded from None


def _tell_report(there: StoreEnd, failure: RankFailure) -> None:
    error = failure.error
    kind = next((name for name, each in _ERRORS.items() if isinstance(error, each)), None)
    said = {"when": failure.time + time.time() - time.monotonic(), "cascade": failure.cascade}
    with suppress(RuntimeError):  # if the store is gone, the next request raises
        there.tell(_report(there.place.rank), said | {"message": failure.message, "kind": kind, "text": str(error)})


def _failure(rank: int, said: Any) -> RankFailure:
    """Return the failure that `_tell_report` wrote, with its time on this node's clock."""
    try:
        when, kind = float(said["when"]) - time.time() + time.monotonic(), said["kind"]
        error = None if kind is None else _ERRORS[kind](str(said["text"]))
        return RankFailure(rank, when, bool(said["cascade"]), str(said["message"]), error)
    except (KeyError, TypeError, ValueError):
        raise Intruded(_report(rank), said) from None


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress standard output, warnings and logging in the context. Crash messages of libraries still appear."""
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


def _begun(rank: int) -> str:
    return f"begun/{rank}"


def _report(rank: int) -> str:
    return f"report/{rank}"
