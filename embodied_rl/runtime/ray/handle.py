"""Handle on a role in an actor, on any node of the cluster with free resources."""

import platform
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.interfaces.version import __version__
from embodied_rl.runtime.processes.arrays import pack, unpack
from embodied_rl.runtime.processes.handle import Deadlines, NoAnswer, NodeShare, RestartLimitReached, WorkerDied
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.runtime.processes.messages import PROTOCOL
from embodied_rl.runtime.processes.remote import CALL_REMEDY, START_REMEDY, RemoteCall, RemoteHandle
from embodied_rl.runtime.processes.worker import CallFailure
from embodied_rl.runtime.ray.cluster import ActorDied, BundlePlace, CallTimeout, RayActor, RayAnswer
from embodied_rl.runtime.ray.connection import explain_wait
from embodied_rl.runtime.ray.hosting import Host, RaisedError, StartOrder

LOG_LINES = 30
_RAY_PREFIXES = (":job_id:", ":actor_name:", ":task_name:")
"""Prefixes of log lines that Ray itself writes."""


class RayCall(RemoteCall):
    """A future that is answered by an actor."""

    def __init__(self, handle: "RayHandle", method: str, answer: RayAnswer):
        super().__init__(handle, method)
        self.answer, self._submitted = answer, self.began

    def left(self, up_since: float, seconds: float) -> float:
        """Return the rest of `seconds`, counted from `submit` or from the actor's start. Only the handle calls this."""
        return max(0.0, max(self._submitted, up_since) + seconds - time.monotonic())


class RayHandle(RemoteHandle[RayCall]):
    """A handle on a role in an actor, on any node with free resources.

    The actor ends with the process that made it. Arrays in answers are copies: the caller can write them, and later
    calls do not change them.

    Args:
        factory: "module:Class" of the role, importable on every node.
        kwargs: its keyword arguments, picklable.
        deadlines: limits for its start, which includes the wait for free resources, and for its calls.
        share: the cores and GPUs that it reserves.
        where: its bundle, if there is a reservation.
        interpreter, packages: as in `ProcessHandle`; with an interpreter, the actor forwards calls to a worker process.
        variables: environment variables of the actor.
    """

    def __init__(
        self,
        factory: str,
        kwargs: Mapping[str, Any],
        *,
        name: str = "worker",
        deadlines: Deadlines | None = None,
        share: NodeShare | None = None,
        where: BundlePlace | None = None,
        interpreter: Interpreter | None = None,
        packages: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
    ):
        deadlines = deadlines or Deadlines()
        super().__init__(name, deadlines.restarts)
        self._deadlines, self._share = deadlines, share or NodeShare()
        self._where, self._variables = where, variables
        self._order = (name, factory, dict(kwargs)), (self._deadlines, interpreter, packages)
        self._memory = 0
        self._launch()

    @property
    def alive(self) -> bool:
        return not self._closed and not self._dead

    @property
    def closed(self) -> bool:
        """Whether the handle was closed, so that its share is free again."""
        return self._closed

    @property
    def pid(self) -> int:
        """The process id of the actor on its node. Reading it waits until the process is up."""
        self._greet()
        return self._greeting["pid"]

    def memory(self) -> int:
        return self._memory if self.alive else 0

    def answered(self, call: RayCall) -> bool:
        if self._starting and self._started.done():
            try:
                self._finish_start()
            except Exception as error:  # noqa: BLE001  raised by `result`
                self._fail(call, error)
        return call.finished or (call.answer.done() and not self._starting) or self._left(call) == 0.0

    def wait_on(self, call: RayCall) -> tuple[Connection, float]:
        return (self._started if self._starting else call.answer).readable, self._left(call)

    def collect(self, call: RayCall, timeout: float | None) -> None:
        assert call is self._pending, f"{self.name}: '{call.method}' is not the current call"
        try:
            if self._starting:
                self._finish_start()
            seconds = self._left(call) if timeout is None else timeout
            reply = self._take(call.answer, seconds, call.method, CALL_REMEDY, timeout or self._deadlines.call)
        except Exception as error:  # noqa: BLE001  raised by `result`, each time
            return self._fail(call, error)
        self._pending = None
        self._restarts.succeeded()
        call.finish(reply.value, call.answer.arrived - reply.seconds, reply.seconds)  # clocks of nodes differ

    def _send(self, method: str, args: tuple[Any, ...]) -> RayCall:
        return RayCall(self, method, self._actor.call("call", pack((method, args))))

    def _stop(self, grace: float = 0.0) -> None:
        self._actor.kill()

    def _launch(self, delay: float = 0.0) -> None:
        self._dead, self._starting, self._pending = False, True, None
        self._greeting: dict[str, Any] = {}
        self._answer_by, self._up_since = time.monotonic() + delay + self._deadlines.start, 0.0
        self._actor = RayActor(Host, [self._where], share=self._share, where=self._where, variables=self._variables)
        self._greeting_call = self._actor.call("hello")
        first, last = self._order
        self._started = self._actor.call("start", pack(StartOrder(*first, delay, *last)))

    def _await_start(self) -> SimulatorSpec | None:
        self._greet()
        reply = self._take(self._started, self._remaining(), "start", START_REMEDY, self._deadlines.start)
        self._up_since = self._started.arrived
        return reply.value

    def _greet(self) -> None:
        """Receive the actor's greeting and check its versions, before anything is unpickled."""
        if self._greeting:
            return
        try:
            greeting = self._greeting_call.take(self._remaining())
        except ActorDied as lost:
            raise self._fail_actor(f"{self.name} {lost} during 'start'.") from None
        except CallTimeout:
            why = explain_wait(self._share, self._where)
            message = f"{self.name} has no process after {self._deadlines.start:g} s: {why} {START_REMEDY}"
            raise self._fail_actor(message, NoAnswer) from None
        problem = compare_versions(greeting["versions"])
        if problem:
            self._start_failure = f"{self.name} cannot run on node {greeting['node']}: {problem}."
            raise self._fail_actor(self._start_failure, RestartLimitReached)
        self._greeting = greeting

    def _take(self, answer: RayAnswer, seconds: float, doing: str, remedy: str, deadline: float) -> Any:
        """Wait for the `Reply` of a call and return it, or raise the exception of the call."""
        try:
            packed, self._memory = answer.take(seconds)
        except ActorDied as lost:
            raise self._fail_actor(f"{self._who()} {lost} during '{doing}'.") from None
        except CallTimeout:
            late = f"{self._who()} gave no answer within {deadline:g} s and was killed during '{doing}'. {remedy}"
            raise self._fail_actor(late, NoAnswer) from None
        reply = unpack(packed)
        if isinstance(reply, CallFailure):
            raise self._worker_error(doing, reply, f" on node {self._greeting['node']}")
        if isinstance(reply.value, RaisedError):
            error = reply.value.error
            if isinstance(error, WorkerDied):  # the death of the actor's worker process also ends the actor
                self._fail_actor("")
                raise type(error)(f"On node {self._greeting['node']}: {error}")
            raise error
        return reply

    def _who(self) -> str:
        return f"{self.name} (pid {self._greeting['pid']} on node {self._greeting['node']})"

    def _fail_actor(self, message: str, kind: type[WorkerDied] = WorkerDied) -> WorkerDied:
        self._actor.kill()
        self._dead = True
        return kind(f"{message}{self._describe_log()}")

    def _describe_log(self) -> str:
        """Return the path of the actor's log, with its last lines if the file is on this machine."""
        path = Path(self._greeting.get("log", ""))
        if path.suffix not in (".err", ".out"):
            return ""
        if not path.is_file():
            return f" Its log is {path} there."
        lines = [line for line in path.read_text(errors="replace").splitlines() if not line.startswith(_RAY_PREFIXES)]
        text = "\n".join(lines[-LOG_LINES:])
        return f"\nThe last lines of its log, {path}:\n{text}" if text else ""

    def _remaining(self) -> float:
        return max(0.0, self._answer_by - time.monotonic())

    def _left(self, call: RayCall) -> float:
        return self._remaining() if self._starting else call.left(self._up_since, self._deadlines.call)


def compare_versions(versions: Mapping[str, Any]) -> str:
    """Return which version differs from ours, or an empty text. Python's patch version may differ."""
    here = {"embodied-rl": __version__, "protocol": PROTOCOL, "Python": platform.python_version()}
    minor = lambda version: str(version).rpartition(".")[0]  # noqa: E731
    for what, ours in here.items():
        theirs = versions.get(what)
        if (minor(theirs) != minor(ours)) if what == "Python" else (theirs != ours):
            return f"{what} {theirs} runs there, {what} {ours} here. Install the same version on every node"
    return ""
