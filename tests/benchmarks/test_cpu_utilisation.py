"""Time in which a thread had to wait for a core."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.benchmarks.cpu_utilisation import read_queued_seconds

TOLD = Path("/proc/thread-self/schedstat").exists()
SPIN = """
import os
os.sched_setaffinity(0, {{{core}}})
print("spinning", flush=True)
while True:
    os.sched_yield()
"""
"""It gives way at once, so that it does not matter how long a system lets a program go on."""


def test_sleeping_is_not_waiting_for_a_core() -> None:
    """The least of some times: on a busy machine, who wakes up does wait for one."""
    waited: list[float] = []
    while len(waited) < 10 and not any(seconds < 0.05 for seconds in waited):
        before = read_queued_seconds() or 0.0
        time.sleep(0.1)
        waited.append((read_queued_seconds() or 0.0) - before)
    assert 0 <= min(waited) < 0.05


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.skipif(not TOLD, reason="the system does not tell")
def test_programs_that_share_a_core_wait_for_each_other() -> None:
    """Three that always want the same core: each waits at least a third of the time."""
    waited: list[float] = []
    core = min(os.sched_getaffinity(0))
    spin = [sys.executable, "-c", SPIN.format(core=core)]
    children = [subprocess.Popen(spin, stdout=subprocess.PIPE) for _ in range(2)]

    def work() -> None:
        os.sched_setaffinity(0, {core})
        before, until = read_queued_seconds() or 0.0, time.monotonic() + 0.5
        while time.monotonic() < until:
            os.sched_yield()
        waited.append((read_queued_seconds() or 0.0) - before)

    try:
        assert [child.stdout.readline() for child in children] == [b"spinning\n"] * 2
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.communicate()
    assert waited[0] > 0.5 / 3
