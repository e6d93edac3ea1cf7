"""Commands as forks of a process that has imported everything, where they cannot be told from new interpreters."""

import atexit
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TypeAlias

from embodied_rl.runtime.processes import process as processes
from tests.support.forked_children import fork_children
from tests.support.forks import Forked, Start, ask_for_fork, is_fit, receive_word

_OWN = dict(os.environ)
"""The server's variables: those before any test changed them."""
_NVIDIA = Path("/dev/nvidiactl")
"""CUDA cannot be used in a fork of a process that looked for devices, as imports may."""
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]


Started: TypeAlias = "Forked | subprocess.Popen[bytes]"


def start(
    module: str,
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    out: IO[str],
    *,
    fresh: bool = False,
    children: bool = False,
) -> "Started":
    """Start `python -m <module> <words>` in a folder and a session of its own, without input.

    Args:
        environment: all its variables.
        out: for its output and errors.
        fresh: whether it has to be a new interpreter: forks share the seed of `hash`, and import nothing anew.
        children: whether what a fork starts in turn are forks as well. They cannot be told by their command lines, and
            the server that forks them is one more child, which `Process.children` leaves out.
    """
    if fresh or (paths := _find_paths(environment)) is None:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    command = [sys.executable, "-m", module, *words]
    sys.audit("subprocess.Popen", sys.executable, command, str(folder), None)
    asked = Start(
        code=f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)",
        words=["-m", *words],
        folder=(here := os.path.realpath(folder)),
        paths=[here, *paths],
        environment=dict(environment),
        numbers=[0, 1, 2],
        limits={number: resource.getrlimit(number) for number in _LIMITS},
        leads=True,
        forks=children,
    )
    with open(os.devnull) as nothing:
        return ask_for_fork(_server().socket, asked, [nothing.fileno(), out.fileno(), out.fileno()])


@contextmanager
def fork_own_children() -> Iterator[None]:
    """Have the server fork the ranks and workers that this process starts meanwhile."""
    if sys.platform != "linux" or _NVIDIA.exists():
        yield
        return
    before = processes.subprocess
    fork_children(_server().socket, _OWN)
    try:
        yield
    finally:
        processes.subprocess = before


def _find_paths(environment: Mapping[str, str]) -> list[str] | None:
    """What PYTHONPATH has in front of the server's; None where the server cannot have what a new interpreter has."""
    if sys.platform != "linux" or _NVIDIA.exists():
        return None
    own, asked = ([*variables.get("PYTHONPATH", "").split(os.pathsep)] for variables in (_OWN, environment))
    if not is_fit(environment, _OWN) or asked[-len(own) :] != own:
        return None
    return asked[: -len(own)]


class _Server:
    """The process that forks. It ends when its socket closes, which the end of this process does, however it comes."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, env=_OWN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        atexit.register(self._close)
        receive_word(self.socket)  # it has imported

    def _close(self) -> None:
        self.socket.close()
        self._process.wait()


_server = cache(_Server)
