"""Time in which a thread had to wait for a core."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from embodied_rl.benchmarks import busy
from embodied_rl.benchmarks.busy import queued

TOLD = Path("/proc/thread-self/schedstat").exists()
SPIN = (
    "import os, time; os.sched_setaffinity(0, {{{core}}}); t = time.monotonic()\nwhile time.monotonic() < t + 1: pass"
)


def test_where_the_system_does_not_tell_there_is_no_figure(monkeypatch) -> None:
    assert (queued() is not None) == TOLD
    monkeypatch.setattr(busy, "_SCHEDULER", Path("/nowhere"))
    assert queued() is None


def test_sleeping_is_not_waiting_for_a_core() -> None:
    before = queued() or 0.0
    time.sleep(0.3)
    assert 0 <= (queued() or 0.0) - before < 0.15


def test_programs_that_share_a_core_wait_for_each_other() -> None:
    """Three that always want the same core: each waits at least a third of the time."""
    waited: list[float] = []
    if not TOLD:
        return
    core = min(os.sched_getaffinity(0))
    children = [subprocess.Popen([sys.executable, "-c", SPIN.format(core=core)]) for _ in range(2)]
    time.sleep(0.3)  # until they have started

    def work() -> None:
        os.sched_setaffinity(0, {core})
        before, until = queued() or 0.0, time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
        waited.append((queued() or 0.0) - before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for child in children:
        child.wait()
    assert waited[0] > 0.5 / 3
