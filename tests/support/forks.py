"""Forks of a process that has imported what they need: how one is asked for, and what belongs to whoever asks.

`fork_server.py` forks, `forked.py` asks in the tests' process, and `forked_children.py` for what a run starts itself.
"""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

LARGEST = 2**17
"""Bytes of a message."""
MOST = 64
"""Descriptors of a message."""
HARMLESS = re.compile(
    r"PYTHONPATH|PYTEST_\w+|XDG_CACHE_HOME|EMBODIED_RL_\w+|RAY_\w+|HF_\w+|\w+_TOKEN|TORCHINDUCTOR_CACHE_DIR|"
    r"PYTHONBREAKPOINT|"  # Ray sets it, for its own debugger
    r"RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_USE_AGENT_STORE|GLOO_SOCKET_IFNAME|PATIENCE"
)
"""Variables that no import of the server reads."""
SERVER = "forks-for-tests"
"""The name of a process that forks what another one starts; at most 15 letters."""
_TAKE_IN_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_ASKING = threading.Lock()


@dataclass(frozen=True)
class Start:
    """What a fork is to become.

    Attributes:
        code: that it executes as `__main__`.
        words: its `sys.argv`.
        folder: where it runs.
        paths: that it imports from: all of them, or, where it leads a session, in front of the server's own.
        environment: all its variables.
        numbers: under which it has the descriptors that come with the message.
        limits: of resources, soft and hard, by number; those of the server where there are none.
        leads: whether it leads a session and a group, or is in those of the server.
        forks: whether its own children are to be forks.
    """

    code: str
    words: list[str]
    folder: str
    paths: list[str]
    environment: dict[str, str]
    numbers: list[int]
    limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    leads: bool = False
    forks: bool = False

    def encode(self) -> bytes:
        """Return the message that asks for it."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(message: bytes) -> "Start":
        """Return what a message asks for."""
        said = json.loads(message)
        limits = {int(number): (soft, hard) for number, (soft, hard) in said.pop("limits").items()}
        return Start(**said, limits=limits)


class Forked:
    """A child of this process: what is used of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._asking = threading.Lock()

    def poll(self) -> int | None:
        with self._asking:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"the forked process {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def ask_for_fork(server: socket.socket, start: Start, descriptors: Sequence[int]) -> Forked:
    """Return a new child of this process that a server below it forked.

    Args:
        server: the socket of a process that this one started.
        start: what it becomes.
        descriptors: that it has under `start.numbers`.
    """
    with _ASKING, _take_in_orphans():
        socket.send_fds(server, [start.encode()], descriptors)
        return Forked(int(receive_word(server)))


def name_process(name: str) -> None:
    """Give this process a name, which `is_fork_server` reads."""
    Path("/proc/self/comm").write_text(name)


def is_fork_server(pid: int) -> bool:
    """Return whether a process serves forks; one that is gone does not."""
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{SERVER}\n"
    except OSError:
        return False


def is_fit(environment: Mapping[str, str], own: Mapping[str, str], others: Collection[str] = ()) -> bool:
    """Return whether a fork can have these variables: no import of its server, which has its `own`, read one of those
    that differ. `others` are as harmless."""
    names = {name for name in {*environment, *own} if environment.get(name) != own.get(name)}
    return all(name in others or HARMLESS.fullmatch(name) for name in names)


def receive_word(server: socket.socket) -> bytes:
    """Return what a server says; where it has ended, fail."""
    said = server.recv(20)
    assert said, "the fork server has ended; what it said of it stands in the tests' own output"
    return said


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
