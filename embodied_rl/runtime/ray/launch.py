"""Starts, watches and ends ranks in actors, from a driver process that is not a rank itself."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any

from embodied_rl.runtime.processes.arrays import pack, unpack
from embodied_rl.runtime.processes.base import NodeShare
from embodied_rl.runtime.processes.signals import handle_stop_signals
from embodied_rl.runtime.ranks.launch import (
    GRACE,
    START_TIMEOUT,
    STOPPING,
    RankFailed,
    RankFailure,
    Stopped,
    find_earliest_cause,
)
from embodied_rl.runtime.ray.cluster import ActorLost, BundlePlace, RayActor, RayAnswer, TooLate
from embodied_rl.runtime.ray.handle import compare_versions
from embodied_rl.runtime.ray.rank import MeetingPoint, RankHost, RankJob, RankOutcome
from embodied_rl.runtime.ray.room import explain_wait

POLL = 0.2
DESK_PATIENCE = 5.0


class RankActor:
    """The driver's side of one rank, whose actor starts at once.

    Args:
        number: of the rank.
        share: its cores and GPUs. where: its bundle. variables: its environment variables.
    """

    def __init__(self, number: int, share: NodeShare, where: BundlePlace | None, variables: Mapping[str, str]):
        self.name, self._share, self._where = f"rank {number}", share, where
        groups = {"desk": 2}
        self.actor = RayActor(RankHost, [where], share=share, where=where, variables=variables, groups=groups)
        self._greeted = self.actor.call("hello")
        self.node = ""

    def greet(self, until: float) -> None:
        """Wait for the rank's greeting and check its versions.

        Raises:
            RankFailed: the rank does not start before `until`, or runs another version.
        """
        try:
            told = self._greeted.take(max(0.0, until - time.monotonic()))
        except ActorLost as lost:
            raise RankFailed(f"{self.name} {lost} while it started.") from None
        except TooLate:
            raise RankFailed(f"{self.name} has no process: {explain_wait(self._share, self._where)}") from None
        problem = compare_versions(told["speaks"])
        if problem:
            raise RankFailed(f"{self.name} cannot run on node {told['node']}: {problem}.")
        self.node = told["node"]
        self.name += f" (pid {told['pid']} on node {told['node']})"

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method and return its answer. Raise `RankFailed` if there is no answer."""
        try:
            return self.actor.call(method, *args).take(START_TIMEOUT)
        except ActorLost as lost:
            raise RankFailed(f"{self.name} {lost} while it started.") from None
        except TooLate:
            raise RankFailed(f"{self.name} gave no answer within {START_TIMEOUT:g} s while it started.") from None


def launch_ranks(
    function: Callable[[Any, Any], Any],
    config: Any,
    places: Sequence[BundlePlace | None],
    timeout: float,
    share: NodeShare,
    variables: Mapping[str, str],
) -> Any:
    """Run `function(config, ranks)` on as many ranks as there are places, each in an actor; see `ranks.launch`.

    Output of rank 0 is also written here. SIGINT, SIGTERM and SIGHUP are passed on to rank 0; a second acts as
    usual, but for SIGHUP. Ranks on one node connect over its loopback interface, otherwise at the nodes' addresses. A
    program that reaches these ports can run code there, so the cluster's network must be trusted.

    Args:
        function: importable by name from its module, on every node.
        config: picklable.
        places: places of the ranks in a reservation.
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
        address, port = ranks[0].ask("meet", len(ranks), timeout, loopback)
        meeting = MeetingPoint(len(ranks), timeout, loopback, address, port)
        threads = max(1, int(share.cpus))
        jobs = [RankJob(function, config, number, meeting, threads) for number in range(len(ranks))]
        runs = [rank.actor.call("run", pack(job)) for rank, job in zip(ranks, jobs, strict=True)]
        with pass_on_signals(ranks[0]) as signals:
            return _watch(ranks, runs, timeout, signals)
    finally:
        for rank in ranks:
            rank.actor.kill()


class PassedSignals:
    """Passes SIGINT and SIGTERM on to rank 0."""

    def __init__(self, rank: RankActor):
        self._rank, self._number, self._answer = rank, 0, None

    def note(self, number: int) -> None:
        """Note a signal that arrived."""
        self._number = number

    def look(self) -> None:
        """Pass a noted signal on, or raise it here if rank 0 ignores it. Raise `Stopped` if the run must stop now."""
        if not self._number:
            return
        if self._answer is None:
            self._answer = self._rank.actor.call("stop")
        if not self._answer.done():
            return
        number, self._number = self._number, 0
        with suppress(ActorLost):  # the answer of its run reports this
            heard = self._answer.take(0)
            if heard == "raise":
                raise Stopped
            if heard == "flag":
                sys.stderr.write(STOPPING.decode())
            else:
                signal.raise_signal(number)


@contextmanager
def pass_on_signals(rank: RankActor) -> Iterator[PassedSignals]:
    """Note the first SIGINT or SIGTERM in the context, for the rank; the next acts as usual. Yield the notes."""
    signals = PassedSignals(rank)
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def note(number: int, _: object) -> None:
        signals.note(number)
        restore()

    with handle_stop_signals(note) as restore:
        yield signals


class OutputEcho:
    """Copies the output of rank 0 to this process's standard output and error."""

    def __init__(self, rank: RankActor):
        self._rank = rank
        self._asked: RayAnswer = rank.actor.call("said")

    def look(self, wait: float = 0.0) -> None:
        """Write the output that has arrived, and ask for more. The last output of a lost rank is only in its log."""
        with suppress(ActorLost, TooLate):
            for stream, text in self._asked.take(wait):
                (sys.stdout if stream == 1 else sys.stderr).write(text)
            sys.stdout.flush()
            sys.stderr.flush()
            self._asked = self._rank.actor.call("said")

    def finish(self) -> None:
        """Write all output of rank 0 so far."""
        self.look(DESK_PATIENCE)
        self.look(DESK_PATIENCE)


def _watch(ranks: list[RankActor], runs: list[RayAnswer], timeout: float, signals: PassedSignals) -> Any:
    echo, ended, late = OutputEcho(ranks[0]), dict[int, RankOutcome](), None
    try:
        while len(ended) < len(runs):
            wait([run.readable for number, run in enumerate(runs) if number not in ended], POLL)
            echo.look()
            signals.look()
            for number, run in enumerate(runs):
                if number not in ended and run.done():
                    ended[number] = _outcome(number, ranks[number], run)
            _raise_first_cause(ended)
            late = late or _deadline(ended, timeout)
            if late is not None and time.monotonic() > late:
                raise _overdue(ranks, ended)
    finally:
        echo.finish()
    if ended[0].stopped:
        raise Stopped
    return ended[0].result


def _outcome(number: int, rank: RankActor, run: RayAnswer) -> RankOutcome:
    """Return how a rank ended. Clocks of nodes differ, so a failure gets the time at which its report arrived."""
    try:
        outcome: RankOutcome = unpack(run.take(0))
    except ActorLost as lost:
        return RankOutcome(failure=RankFailure(number, run.arrived, False, f"{rank.name} {lost}."))
    if outcome.failure is None:
        return outcome
    failure = outcome.failure
    return RankOutcome(failure=RankFailure(number, run.arrived, failure.cascade, failure.message, failure.error))


def _raise_first_cause(ended: Mapping[int, RankOutcome]) -> None:
    first = find_earliest_cause(outcome.failure for outcome in ended.values() if outcome.failure is not None)
    if first is None:
        return
    if first.error is not None:
        raise first.error from None
    raise RankFailed(f"rank {first.rank} failed first:\n{first.message}")


def _deadline(ended: Mapping[int, RankOutcome], timeout: float) -> float | None:
    """Return the time by which the other ranks must end, once rank 0 has ended or a rank has failed; None before."""
    if any(outcome.failure is not None for outcome in ended.values()):
        return time.monotonic() + GRACE
    return time.monotonic() + timeout if 0 in ended else None


def _overdue(ranks: list[RankActor], ended: Mapping[int, RankOutcome]) -> RankFailed:
    silent = [rank.name for number, rank in enumerate(ranks) if number not in ended]
    said = [outcome.failure.message for outcome in ended.values() if outcome.failure is not None]
    return RankFailed(f"{' and '.join(silent)} did not follow the others, and did not end.\n{''.join(said)}".rstrip())
