"""A process that has imported what commands import, and forks a child for each command that a test starts.

A new interpreter imports for seconds before its command begins. A fork of this process begins at once, and does what
`python -m <module> <words>` does: see `forked.py`, which asks, and `tests/processes/test_forked.py`, which compares.

    python -m tests.support.fork_server <descriptor of a socket>
"""

import gc
import json
import os
import resource
import runpy
import socket
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module, invalidate_caches
from pathlib import Path

IMPORTED = (
    "embodied_rl.cli.run_command", "embodied_rl.cli.help", "embodied_rl.commands.train", "embodied_rl.commands.eval",
    "embodied_rl.training.loop", "embodied_rl.planner.auto", "embodied_rl.assembly.outline",
    "embodied_rl.algorithms.ppo", "embodied_rl_policies.pocket", "embodied_rl_sims.tabletop.simulator", "torch._dynamo",
    "PIL.Image",
)  # fmt: skip
"""Modules whose import starts no thread, and depends on no variable that a test sets (`forked.py` sees to that)."""
LARGEST = 2**17
"""Bytes of a message."""


@dataclass(frozen=True)
class Start:
    """What a child is to become.

    Attributes:
        module: that runs as `python -m` runs it. words: its command line.
        folder: where it runs. paths: what PYTHONPATH has in front of what it has in this process.
        environment: all its variables.
        limits: of resources, soft and hard, by number.
    """

    module: str
    words: list[str]
    folder: str
    paths: list[str]
    environment: dict[str, str]
    limits: dict[int, tuple[int, int]]

    def encode(self) -> bytes:
        """Return the message that asks for it."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(message: bytes) -> "Start":
        """Return what a message asks for."""
        said = json.loads(message)
        limits = {int(number): (soft, hard) for number, (soft, hard) in said.pop("limits").items()}
        return Start(**said, limits=limits)

    def run(self) -> None:
        """Run it in this process, which was forked for it."""
        import numpy as np

        os.chdir(self.folder)
        for number, limit in self.limits.items():
            resource.setrlimit(number, limit)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path[:1] = [self.folder, *self.paths]
        invalidate_caches()
        np.random.seed()  # that of a new interpreter is drawn anew; `random` sees to itself
        sys.argv[1:] = self.words
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Fork for each message until the other end is gone. In a child, return as its command does."""
    asking = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED:
        import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"a fork has one thread alone, and imports started {threads - 1} more"
    gc.collect()
    gc.freeze()  # otherwise each child copies what a collection touches
    asking.send(b"ready")
    while True:
        message, descriptors, *_ = socket.recv_fds(asking, LARGEST, 3)
        if not message:
            return
        if (pid := fork_for_parent()) == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        asking.send(str(pid).encode())
    asking.close()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    Start.decode(message).run()


def fork_for_parent() -> int:
    """Fork a child, in a session of its own, that belongs to the process which started this one.

    The child's first parent ends at once; then the system gives it to whoever of its ancestors takes in orphans.

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
    os.setsid()
    os.close(read)
    with open(write, "w") as telling:
        telling.write(str(os.getpid()))
    return 0


if __name__ == "__main__":
    main()
