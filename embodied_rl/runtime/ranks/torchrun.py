"""Ranks started by torchrun: `torchrun --nproc-per-node 4 -m embodied_rl train …`, on one node or several.

torchrun starts the same command line in several processes and gives each a rank. Each process reads its configuration
from the command line. Rank 0 makes the run's folder, publishes its path in torchrun's store, prints, and handles
signals. The other ranks end with rank 0's exit code. Rank 0 reports their errors.

Every process that reaches the store can read and write it, and the store listens on every network. It holds JSON that
names a folder, addresses and failures, and no code. `docs/security.md` describes what this protects against.

torchrun sends signals to all processes: rank 0 handles them, and the others ignore them during the run. Its agent
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
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime.processes.handle import WorkerDied
from embodied_rl.runtime.ranks import launch as local
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.ranks.launch import GRACE, RankFailed, RankFailure
from embodied_rl.runtime.ranks.torchrun_launcher import FAILED, TorchrunPlace
from embodied_rl.runtime.ranks.torchrun_store import StoreClient, UnexpectedStoreEntry, open_store
from embodied_rl.system.signals import STOP_SIGNALS, handle_stop_signals

Config = TypeVar("Config")
Result = TypeVar("Result")
AGENT = "TORCHELASTIC_USE_AGENT_STORE"
"""Whether torchrun's agent hosts the store; otherwise rank 0 does, e.g. if the variables were set by hand."""
LATER = 0.5
"""Seconds after a failed rank 0 in which the others end: torchrun reports the first to end as the root cause."""
_JOINED, _END, _DECISION = "launch", "end", "decision"
_ERRORS = {kind.__name__: kind for kind in (UserError, FloatingPointError, Unavailable)}
"""Exceptions that rank 0 raises again; only their text and code are sent."""


class Rank0Exited(BaseException):
    """Rank 0 has ended. This is a `BaseException`, so that only `_run_follower` catches it."""


@dataclass(frozen=True)
class Follower:
    """Another rank, with the methods of a `ChildProcess` that report its outcome."""

    store: StoreClient
    rank: int

    def ready(self) -> bool:
        """Return whether the rank has reported its outcome."""
        return self.store.has(_report_key(self.rank))

    def await_begin(self, seconds: float) -> None:
        """Wait until the rank has begun, or has failed before that.

        Raises:
            WorkerDied: the rank did neither within `seconds`.
        """
        with suppress(TimeoutError):
            self.store.get(_begun_key(self.rank), seconds, until=_report_key(self.rank))
            return
        if not self.ready():
            raise WorkerDied(f"rank {self.rank} did not begin within {seconds:g} s.")

    def receive(self, timeout: float, doing: str) -> RankFailure | None:
        """Wait for the rank's report and return its failure, or None if it succeeded.

        Raises:
            WorkerDied: the rank did not report within `timeout` seconds.
        """
        try:
            report = self.store.get(_report_key(self.rank), timeout)
        except TimeoutError:
            how = "reported nothing: it was killed or hangs. If it ended, see torchrun's summary."
            raise WorkerDied(f"rank {self.rank} {how}") from None
        if report is None:
            return None
        try:  # the time is converted to this node's clock
            when, kind = float(report["when"]) - time.time() + time.monotonic(), report["kind"]
            error = None if kind is None else _ERRORS[kind](str(report["text"]))
            if isinstance(error, UserError):
                error.code = str(report["code"])
            return RankFailure(self.rank, when, bool(report["cascade"]), str(report["message"]), error)
        except (KeyError, TypeError, ValueError):
            raise UnexpectedStoreEntry(_report_key(self.rank), report) from None


def run_process(place: TorchrunPlace, lead: Callable[[], int], follow: Callable[[], object]) -> int:
    """Run a process of torchrun and return its exit code.

    Args:
        place: the rank of this process, and the number of processes.
        lead: function of rank 0; its return value is the exit code of all processes.
        follow: function of the other ranks; rank 0 reports the errors that it raises.
    """
    store = open_store(place)
    if place.rank > 0:
        return _run_follower(store, follow)
    code = FAILED
    try:
        code = lead()
    finally:
        store.set(_END, code)
        if os.environ.get(AGENT) != "True":  # the store ends with this process, so wait for the others
            until = time.monotonic() + GRACE
            for rank in range(1, place.size):
                with suppress(TimeoutError):
                    store.get(f"left/{rank}", max(0.0, until - time.monotonic()))
    return code


def decide_on_rank_0(decide: Callable[[], Any]) -> Any:
    """Call `decide` on rank 0, or here without torchrun, and return its value on every process, once in a run.

    Args:
        decide: called only on rank 0; returns a JSON value.
    """
    place = TorchrunPlace.find()
    if place is None or place.size == 1:
        return decide()
    store = open_store(place)
    if place.rank == 0:
        value = decide()
        store.set(_DECISION, value)
        return value
    return _get_from_rank_0(store, _DECISION)


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
    store = open_store(place)
    if place.rank > 0:
        return _run_other_rank(store, function, config, timeout)
    others: list[Any] = [Follower(store, rank) for rank in range(1, size)]
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def lead(config: Config, ranks: Ranks) -> Result:
        try:
            return function(config, ranks)
        except Exception:
            for number in STOP_SIGNALS:  # so that rank 0 can still report
                signal.signal(number, signal.SIG_IGN)
            raise

    try:
        for other in others:
            other.await_begin(timeout)
        _raise_failure(others)
        store.set(_JOINED, True)
        return local.lead_ranks(lead, config, lambda: store.join(timeout), timeout, others)
    except KeyboardInterrupt:  # torchrun ends this process, perhaps because another rank failed
        _raise_failure(others)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def choose_launcher() -> Callable[..., Any]:
    """Return `launch_here` if torchrun started this process, otherwise `runtime.ranks.launch.launch_ranks`."""
    return local.launch_ranks if TorchrunPlace.find() is None else launch_here


def _raise_failure(others: list[Any]) -> None:
    """Raise the earliest failure that other ranks have reported by now and that no other rank caused."""
    failures = [failure for other in others if other.ready() and (failure := other.receive(0.0, "the end"))]
    first = local.find_earliest_cause(failures)
    if first is not None:
        raise first.error or RankFailed(f"rank {first.rank} failed first:\n{first.message}") from None


def _run_follower(store: StoreClient, follow: Callable[[], object]) -> int:
    """Run `follow` without output, then wait until rank 0 ends; return rank 0's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the launch, a signal ends this process at once
    failure, before = None, logging.root.manager.disable
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():  # crash messages of libraries still appear
        warnings.simplefilter("ignore")
        logging.disable(100)
        try:
            follow()
        except Rank0Exited:
            pass
        except _Reported as reported:
            failure = reported.failure
        except Exception as error:  # noqa: BLE001  a process border
            failure = local.describe_failure(store.place.rank, error)
            _publish_outcome(store, failure)
        finally:
            logging.disable(before)
    try:
        code = store.get(_END, None if failure is None else GRACE)
        if not isinstance(code, int):
            raise UnexpectedStoreEntry(_END, code)
    except (TimeoutError, RuntimeError):  # rank 0 is gone and cannot report, or the store is gone too
        if failure is not None and not failure.cascade:
            print(failure.message, file=sys.stderr)
        return FAILED
    store.set(f"left/{store.place.rank}", None)
    time.sleep(LATER if code else 0.0)
    return code


class _Reported(BaseException):
    """The failure of this rank, already reported to rank 0."""

    def __init__(self, failure: RankFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _run_other_rank(
    store: StoreClient, function: Callable[[Config, Ranks], Result], config: Config, timeout: float
) -> Result:
    store.set(_begun_key(store.place.rank), True)
    _get_from_rank_0(store, _JOINED)
    joined = None
    with handle_stop_signals(signal.SIG_IGN):  # rank 0 handles signals
        try:
            joined = store.join(timeout)
            result = function(config, joined)
        except Exception as error:  # noqa: BLE001  a process border
            failure = local.describe_failure(store.place.rank, error)
            if joined is not None:
                joined.leave()
            _publish_outcome(store, failure)
            raise _Reported(failure) from None
        joined.leave()
        with suppress(RuntimeError):  # if the store is gone, the next request raises
            store.set(_report_key(store.place.rank), None)
        return result


def _get_from_rank_0(store: StoreClient, key: str) -> Any:
    """Wait for rank 0's value under a key and return it.

    Raises:
        Rank0Exited: rank 0 has ended instead.
    """
    try:
        return store.get(key, until=_END)
    except TimeoutError:
        raise Rank0Exited from None


def _publish_outcome(store: StoreClient, failure: RankFailure) -> None:
    error = failure.error
    kind = next((name for name, each in _ERRORS.items() if isinstance(error, each)), None)
    report = {
        "when": failure.time + time.time() - time.monotonic(),
        "cascade": failure.cascade,
        "message": failure.message,
        "kind": kind,
        "text": str(error),
        "code": getattr(error, "code", ""),
    }
    with suppress(RuntimeError):  # if the store is gone, the next request raises
        store.set(_report_key(store.place.rank), report)


def _begun_key(rank: int) -> str:
    return f"begun/{rank}"


def _report_key(rank: int) -> str:
    return f"report/{rank}"
