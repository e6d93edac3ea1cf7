"""Processes that a run starts itself, as forks: where a test looks at what they compute, and not at how they start."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any

from embodied_rl.runtime.processes import process as processes
from tests.support.forks import Forked, Start, ask_for_fork, is_fit

_OWN_COMMAND = [sys.executable, "-P", "-c"]
"""How the command line of a process in this environment begins; see `make_own_command`."""
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def fork_children(server: socket.socket, own: Mapping[str, str]) -> None:
    """From now on, let a server, which has its `own` variables, fork what this process starts with one thread."""

    def start(
        command: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], stdout: IO[bytes], **others: Any
    ) -> Forked | subprocess.Popen[Any]:
        fit = list(command[:3]) == _OWN_COMMAND and _THREADS.items() <= env.items() and is_fit(env, own, _THREADS)
        if fit:
            return _fork(server, command, env, pass_fds, stdout)
        return subprocess.Popen(command, env=env, pass_fds=pass_fds, stdout=stdout, **others)

    processes.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": start})  # type: ignore[assignment]


def _fork(
    server: socket.socket, command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int], log: IO[bytes]
) -> Forked:
    start = Start(
        code=command[3],
        words=["-c", *command[4:]],
        folder=os.getcwd(),
        paths=env["PYTHONPATH"].split(os.pathsep),
        environment=dict(env),
        numbers=[0, 1, 2, *pass_fds],
    )
    with open(os.devnull) as nothing:
        return ask_for_fork(server, start, [nothing.fileno(), log.fileno(), log.fileno(), *pass_fds])
