"""Keep the scheduling priority of this process from a library that changes it.

SVT-AV1 gives the thread that opens it, and its own threads, real-time priority 99 where the process runs as root. Child
processes inherit it, and then starve everything else on their cores.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")


@contextmanager
def keep_priority() -> Iterator[None]:
    """Restore, at the end of the context, the scheduling policy and priority of all threads to those of this thread."""
    if not _THREADS.is_dir():
        yield
        return
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in (int(task.name) for task in _THREADS.iterdir()):
            with suppress(ProcessLookupError):  # it has ended
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, parameter)
