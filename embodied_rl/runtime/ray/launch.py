"""Launcher of ranks in actors, from a driver process that is not a rank itself."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from embodied_rl.runtime.processes.arrays import pack, unpack
from embodied_rl.runtime.processes.handle import NodeShare
from embodied_rl.runtime.ranks.launch import (
    GRACE,
    START_TIMEOUT,
    STOPPING,
    RankFailed,
    RankFailure,
    Stopped,
    find_earliest_cause,
)
from embodied_rl.runtime.ray.cluster import ActorDied, BundlePlace, CallTimeout, RayActor, RayAnswer
from embodied_rl.runtime.ray.connection import explain_wait
from embodied_rl.runtime.ray.handle import compare_versions
from embodied_rl.runtime.ray.rank import RankHost, RankJob, RankOutcome
from embodied_rl.system.signals import handle_stop_signals

POLL = 0.2
LAST_OUTPUT_S = 5.0


class RankActor:
    """The actor of a rank, as used by the driver. It starts at once.

    Args:
        share: its cores and GPUs. where: its bundle. variables: its environment variables.
    """

    def __init__(self, number: int, share: NodeShare, where: BundlePlace | None, variables: Mapping[str, str]):
        self.name, self._share, self._where = f"rank {number}", share, where
        groups = {"monitor": 2}
        self.actor = RayActor(RankHost, [where], share=share, where=where, variables=variables, groups=groups)
        self._greeting = self.actor.call("hello")
        self.node = ""

    def greet(self, until: float) -> None:
        """Wait for the rank's greeting and check its versions.

        Raises:
            RankFailed: the rank does not start before `until`, or runs another version.
        """
        try:
            greeting = self._greeting.take(max(0.0, until - time.monotonic()))
        except ActorDied as lost:
            raise RankFailed(f"{self.name} {lost} while it started.") from None
        except CallTimeout:
            raise RankFailed(f"{self.name} has no process: {explain_wait(self._share, self._where)}") from None
        problem = compare_versions(greeting["versions"])
        if problem:
            raise RankFailed(f"{self.name} cannot run on node {greeting['node']}: {problem}.")
        self.node = greeting["node"]
        self.name += f" (pid {greeting['pid']} on node {self.node})"

    def call(self, method: str, *args: Any) -> Any:
        """Call a method and return its result. Raise `RankFailed` if there is none."""
        try:
            return self.actor.call(method, *args).take(START_TIMEOUT)
        except ActorDied as lost:
            raise RankFailed(f"{self.name} {lost} while it started.") from None
        except CallTimeout:
            raise RankFailed(f"{self.name} gave no answer within {START_TIMEOUT:g} s while it started.") from None


def launch_ranks(
    function: Callable[[Any, Any], Any],
    config: Any,
    places: Sequence[BundlePlace | None],
    timeout: float,
    share: NodeShare,
    variables: Mapping[str, str],
) -> Any:
    """Run `function(config, ranks)` on one rank for each of `places`, each in an actor; see `ranks.launch`.

    Output of rank 0 is also written here. SIGINT, SIGTERM and SIGHUP are forwarded to rank 0; a second one,
    except SIGHUP, ends the run at once. Ranks on one node connect over its loopback interface, otherwise at the nodes'
    addresses. A program that reaches these ports can run code there, so the cluster's network must be trusted.

    Args:
        function: importable by name from its module, on every node.
        config: picklable.
        places: bundles of the ranks in a reservation.
        timeout: seconds that ranks wait for each other.
        share: cores and GPUs of a rank; torch uses as many threads as it has cores.
        variables: environment variables of the ranks.

    Raises:
        RankFailed: a rank failed; the message is about the first one.
        Stopped: a signal asked the run to stop while everything is saved.
        Exception: a rank failed first, with an error whose message is complete.
    """
    ranks = [RankActor(number, share, where, variables) for number, where in enumerate(places)]
    try:
        until = time.monotonic() + START_TIMEOUT
        for rank in ranks:
            rank.greet(until)
        loopback = len({rank.node for rank in ranks}) == 1
        address, port = ranks[0].call("host_store", len(ranks), timeout, loopback)
        same = (len(ranks), max(1, int(share.cpus)), timeout, loopback, address, port)
        runs = [
            rank.actor.call("run", pack(RankJob(function, config, number, *same))) for number, rank in enumerate(ranks)
        ]
        with forward_signals(ranks[0]) as signals:
            return _watch(ranks, runs, timeout, signals)
    finally:
        for rank in ranks:
            rank.actor.kill()


class ForwardedSignals:
    """Forwards SIGINT and SIGTERM to rank 0."""

    def __init__(self, rank: RankActor):
        self._rank, self._number, self._answer = rank, 0, None

    def record(self, number: int) -> None:
        """Record a received signal."""
        self._number = number

    def forward(self) -> None:
        """Forward a recorded signal, or raise it here if rank 0 ignores it. Raise `Stopped` to stop the run now."""
        if not self._number:
            return
        if self._answer is None:
            self._answer = self._rank.actor.call("stop")
        if not self._answer.done():
            return
        number, self._number = self._number, 0
        with suppress(ActorDied):  # the answer of its run reports this
            reaction = self._answer.take(0)
            if reaction == "raise":
                raise Stopped
            if reaction == "flag":
                sys.stderr.write(STOPPING.decode())
            else:
                signal.raise_signal(number)


@contextmanager
def forward_signals(rank: RankActor) -> Iterator[ForwardedSignals]:
    """Record the first SIGINT or SIGTERM in the context, for the rank; restore the handlers for the next one."""
    signals = ForwardedSignals(rank)
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def record(number: int, _: object) -> None:
        signals.record(number)
        restore()

    with handle_stop_signals(record) as restore:
        yield signals


class OutputEcho:
    """Copies the output of rank 0 to this process's standard output and error."""

    def __init__(self, rank: RankActor):
        self._rank = rank
        self._request: RayAnswer = rank.actor.call("output")

    def write(self, wait: float = 0.0) -> None:
        """Write the output that has arrived, and request more. The last output of a lost rank is only in its log."""
        with suppress(ActorDied, CallTimeout):
            for stream, text in self._request.take(wait):
                (sys.stdout if stream == 1 else sys.stderr).write(text)
            sys.stdout.flush()
            sys.stderr.flush()
            self._request = self._rank.actor.call("output")

    def finish(self) -> None:
        """Write all output of rank 0 so far."""
        self.write(LAST_OUTPUT_S)
        self.write(LAST_OUTPUT_S)


def _watch(ranks: list[RankActor], runs: list[RayAnswer], timeout: float, signals: ForwardedSignals) -> Any:
    echo, ended, late = OutputEcho(ranks[0]), dict[int, RankOutcome](), None
    try:
        while len(ended) < len(runs):
            wait([run.readable for number, run in enumerate(runs) if number not in ended], POLL)
            echo.write()
            signals.forward()
            for number, run in enumerate(runs):
                if number in ended or not run.done():
                    continue
                try:
                    ended[number] = unpack(run.take(0))
                except ActorDied as lost:
                    lost_rank = RankFailure(number, 0.0, False, f"{ranks[number].name} {lost}.")
                    ended[number] = RankOutcome(failure=lost_rank)
                if (failure := ended[number].failure) is not None:  # its time is that of the report, as clocks differ
                    ended[number] = RankOutcome(failure=replace(failure, rank=number, time=run.arrived))
            failures = [outcome.failure for outcome in ended.values() if outcome.failure is not None]
            if (first := find_earliest_cause(failures)) is not None:
                if first.error is not None:
                    raise first.error from None
                raise RankFailed(f"rank {first.rank} failed first:\n{first.message}")
            failed = bool(failures)
            if late is None and (failed or 0 in ended):  # the other ranks must then end in time
                late = time.monotonic() + (GRACE if failed else timeout)
            if late is not None and time.monotonic() > late:
                silent = " and ".join(rank.name for number, rank in enumerate(ranks) if number not in ended)
                messages = "".join(failure.message for failure in failures)
                raise RankFailed(f"{silent} did not end with the other ranks.\n{messages}".rstrip())
    finally:
        echo.finish()
    if ended[0].stopped:
        raise Stopped
    return ended[0].result
