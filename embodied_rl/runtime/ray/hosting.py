"""Main object of an actor: it sends its versions before anything is unpickled, builds a role, and answers calls."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.version import __version__
from embodied_rl.runtime.processes.arrays import Packed, pack, unpack
from embodied_rl.runtime.processes.handle import Deadlines
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.runtime.processes.local import ProcessHandle
from embodied_rl.runtime.processes.messages import PROTOCOL
from embodied_rl.runtime.processes.process import read_resident_bytes
from embodied_rl.runtime.processes.worker import CallFailure, HostedRole, attempt_call, build_role
from embodied_rl.runtime.ray import cluster

PLACE: list[cluster.BundlePlace] = []
"""The bundle of this process, if any; set once, before any other call."""


@dataclass(frozen=True)
class StartOrder:
    """The order to build a role after `delay` seconds; the other fields are as in `ProcessHandle`."""

    name: str
    factory: str
    kwargs: Mapping[str, Any]
    delay: float
    deadlines: Deadlines
    interpreter: Interpreter | None
    packages: tuple[str, ...]


@dataclass(frozen=True)
class RaisedError:
    """A `RunFailed` to be raised unchanged in the calling process."""

    error: RunFailed


def make_greeting() -> dict[str, Any]:
    """Return this process's versions, id, node and log as plain values, which any version of our package can read."""
    versions = {"embodied-rl": __version__, "protocol": PROTOCOL, "Python": platform.python_version()}
    log = os.path.realpath("/proc/self/fd/2")
    return {"versions": versions, "pid": os.getpid(), "node": cluster.find_own_address(), "log": log}


class Host:
    """Hosts a role for a `RayHandle`. Its arguments and answers are plain values or `Packed`.

    Args:
        place: bundle of this process in a reservation.
    """

    def __init__(self, place: cluster.BundlePlace | None):
        PLACE[:] = [] if place is None else [place]
        self._hosted: HostedRole | None = None
        self._separate: ProcessHandle | None = None  # a simulator in another Python environment on this node

    def hello(self) -> dict[str, Any]:
        """Return the greeting of this process; see `make_greeting`."""
        return make_greeting()

    def start(self, packed: Packed) -> tuple[Packed, int]:
        """Build the role that a `StartOrder` names; return its spec, or None for other roles, and resident bytes."""
        return answer_call(lambda: self._start(unpack(packed))), read_resident_bytes(os.getpid())

    def call(self, packed: Packed) -> tuple[Packed, int]:
        """Call a method, given as packed name and arguments; return the packed reply and resident bytes."""

        def call() -> Any:
            method, args = unpack(packed)
            if self._separate is not None:
                return self._separate.close() if method == "close" else self._separate.submit(method, *args).result()
            assert self._hosted is not None, "called before it was built"
            return self._hosted.call(method, args)

        reply = answer_call(call)
        return reply, read_resident_bytes(os.getpid()) + (self._separate.memory() if self._separate is not None else 0)

    def _start(self, order: StartOrder) -> Any:
        time.sleep(order.delay)
        if order.interpreter is not None:
            self._separate = ProcessHandle(
                order.factory,
                order.kwargs,
                name=order.name,
                start_timeout=order.deadlines.start,
                call_timeout=order.deadlines.call,
                interpreter=order.interpreter,
                packages=order.packages,
            )
            return self._separate.spec
        role = build_role(order.factory, order.kwargs)
        self._hosted = HostedRole(role)
        spec = getattr(role, "spec", None)
        return None if spec is None else replace(spec, device="cpu")


def answer_call(call: Callable[[], Any]) -> Packed:
    """Run a call and return its packed `Reply` or `CallFailure`."""

    def keep_run_failures() -> Any:
        try:
            return call()
        except RunFailed as error:
            return RaisedError(error)

    reply = attempt_call(keep_run_failures)
    packed = attempt_call(pack, reply)
    return pack(packed) if isinstance(packed, CallFailure) else packed.value
