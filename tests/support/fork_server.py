"""A process that has imported what commands import, and forks itself for each that a test starts.

A new interpreter imports for seconds before its command begins. A fork of this process begins at once, and does what
`python -m <module> <words>` does: `tests/runtime/processes/test_forked.py` compares.

    python -m tests.support.fork_server <descriptor of a socket>
"""

import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import time
from importlib import import_module, invalidate_caches
from pathlib import Path

from tests.support.forks import LARGEST, MOST, SERVER, Start, name_process

IMPORTED = (
    "embodied_rl.cli.run_command", "embodied_rl.cli.help", "embodied_rl.commands.train", "embodied_rl.commands.eval",
    "embodied_rl.training.loop", "embodied_rl.training.planner.plan_selection", "embodied_rl.assembly.build",
    "embodied_rl.training.algorithms.ppo", "embodied_rl_policies.pocket", "embodied_rl_sims.tabletop.simulator",
    "torch._dynamo", "PIL.Image",
)  # fmt: skip
"""Modules whose import starts no thread, and depends on no variable that a test sets (`forked.py` sees to that)."""
OWN_NAME = Path("/proc/self/comm").read_text().strip()
_ABOVE = 512
"""Descriptors below are closed, but for those that a fork is given."""


def main() -> None:
    """Import, say so, and serve."""
    asking = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED:
        import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"a fork has one thread alone, and imports started {threads - 1} more"
    gc.collect()
    gc.freeze()  # otherwise each child copies what a collection touches
    asking.send(b"ready")
    serve(asking)


def serve(asking: socket.socket) -> None:
    """Fork for each message until the other end is gone, then end at once. In a fork, return when its code does."""
    while True:
        message, descriptors, *_ = socket.recv_fds(asking, LARGEST, MOST)
        if not message:
            os._exit(0)
        start = Start.decode(message)
        if (pid := fork_for_parent(start)) == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        asking.send(str(pid).encode())
    name_process(OWN_NAME)
    asking.detach()
    become(start, descriptors)


def fork_for_parent(start: Start) -> int:
    """Fork a child that belongs to the process which started this one, and may lead a session.

    The child's first parent ends at once; then the system gives it to whoever of its ancestors takes in orphans. It has
    its limits before anybody knows its number: who does may set others.

    Returns:
        The child's number; 0 in the child.
    """
    read, write = os.pipe()
    if first := os.fork():
        os.close(write)
        os.waitpid(first, 0)
        with open(read) as told:
            return int(told.read())
    first = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == first:
        time.sleep(0.0005)
    if start.leads:
        os.setsid()
    for number, limit in start.limits.items():
        resource.setrlimit(number, limit)
    os.close(read)
    with open(write, "w") as telling:
        telling.write(str(os.getpid()))
    return 0


def become(start: Start, descriptors: list[int]) -> None:
    """Become, in a fork, what was asked for."""
    import numpy as np

    _place(descriptors, start.numbers)
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.path[: 1 if start.leads else None] = start.paths
    sys.argv[:] = start.words
    invalidate_caches()
    np.random.seed()  # that of a new interpreter is drawn anew; `random` sees to itself
    if start.forks:
        _serve_below()
    exec(start.code, {"__name__": "__main__"})


def _place(descriptors: list[int], numbers: list[int]) -> None:
    """Have descriptors under these numbers, and no others."""
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ABOVE) for descriptor in descriptors]
    os.closerange(3, _ABOVE)
    for descriptor, number in zip(above, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _serve_below() -> None:
    """Fork a server for the children of this process, while it has one thread and has computed nothing."""
    from embodied_rl.system.signals import STOP_SIGNALS
    from tests.support.forked_children import fork_children

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    name_process(SERVER)  # the child's name from its first moment: whoever counts this process's children leaves it out
    if os.fork() == 0:
        ours.close()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # as when a run starts a process
        serve(theirs)
        sys.exit()
    name_process(OWN_NAME)
    theirs.close()
    fork_children(ours, dict(os.environ))


if __name__ == "__main__":
    main()
