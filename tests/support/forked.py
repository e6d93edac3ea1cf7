"""Commands as forks of a process that has imported everything, where they cannot be told from new interpreters."""

import atexit
import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TypeAlias

from tests.support.fork_server import Start

HARMLESS = re.compile(
    r"PYTHONPATH|PYTEST_\w+|XDG_CACHE_HOME|EMBODIED_RL_\w+|RAY_\w+|HF_\w+|\w+_TOKEN|TORCHINDUCTOR_CACHE_DIR|"
    r"RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_USE_AGENT_STORE|PATIENCE"
)
"""Variables that no import of the server reads. Where others differ from its own, a new interpreter starts."""
_OWN = dict(os.environ)
"""The server's variables: those before any test changed them."""
_NVIDIA = Path("/dev/nvidiactl")
"""CUDA cannot be used in a fork of a process that looked for devices, as imports may."""
_TAKE_IN_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]


class Forked:
    """A child of this process: what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a forked command", timeout)
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


Started: TypeAlias = "Forked | subprocess.Popen[bytes]"


def start(
    module: str,
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    out: IO[str],
    *,
    fresh: bool = False,
) -> "Started":
    """Start `python -m <module> <words>` in a folder and a session of its own, without input.

    Args:
        environment: all its variables.
        out: for its output and errors.
        fresh: whether it has to be a new interpreter: forks share the seed of `hash`, and import nothing anew.
    """
    if fresh or (paths := _find_paths(environment)) is None:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    sys.audit("subprocess.Popen", sys.executable, [sys.executable, "-m", module, *words], str(folder), None)
    limits = {number: resource.getrlimit(number) for number in _LIMITS}
    asked = Start(module, [*words], os.path.realpath(folder), paths, dict(environment), limits)
    server = _server()
    with open(os.devnull) as nothing, _take_in_orphans():
        return Forked(server.fork(asked, [nothing.fileno(), out.fileno(), out.fileno()]))


def _find_paths(environment: Mapping[str, str]) -> list[str] | None:
    """What PYTHONPATH has in front of the server's; None where the server cannot have what a new interpreter has."""
    if sys.platform != "linux" or _NVIDIA.exists():
        return None
    names = {name for name in {*environment, *_OWN} if environment.get(name) != _OWN.get(name)}
    own, asked = ([*variables.get("PYTHONPATH", "").split(os.pathsep)] for variables in (_OWN, environment))
    if not all(map(HARMLESS.fullmatch, names)) or asked[-len(own) :] != own:
        return None
    return asked[: -len(own)]


class _Server:
    """The process that forks. It ends when its socket closes, which the end of this process does, however it comes."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, env=_OWN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        atexit.register(self._close)
        self._receive()  # it has imported

    def fork(self, asked: Start, descriptors: Sequence[int]) -> int:
        """Return the number of a new process, a child of this one once that takes in orphans."""
        socket.send_fds(self._socket, [asked.encode()], descriptors)
        return int(self._receive())

    def _receive(self) -> bytes:
        said = self._socket.recv(20)
        assert said, f"the fork server ended with code {self._process.wait()}"
        return said

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


_server = cache(_Server)


@contextmanager
def _take_in_orphans() -> Iterator[None]:
    """Become the parent of each process below this one whose parent ends meanwhile."""
    _set_taking_in(True)
    try:
        yield
    finally:
        _set_taking_in(False)


def _set_taking_in(value: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_TAKE_IN_ORPHANS, int(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
