"""Processes of a deployment: the first failure is reported, and all end with their parent."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_rl.benchmarks.robot_runs.processes import DeploymentProcesses, reserve_domain_id
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.system.atomic_write import StorageError
from tests.support.ended import gone, wait_for

pytestmark = [pytest.mark.process, pytest.mark.thorough]

PARENT = """
import sys, time
from pathlib import Path
from embodied_rl.benchmarks.robot_runs.processes import DeploymentProcesses
processes = DeploymentProcesses(Path(sys.argv[1]), {})
print(processes.start("server", "serve", "asset:tabletop_base.safetensors", "port=0").pid, flush=True)
time.sleep(600)
"""

HANGING = """
import ctypes, signal, sys, time
from embodied_rl.benchmarks.robot_runs.processes import end_with
end_with(int(sys.argv[1]), 1.0)
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)  # a library that hangs after the interpreter
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("ready", flush=True)
while True:
    time.sleep(0.05)  # a signal just before a sleep is seen after it
"""
PARENT_OF_HANGING = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_failed_process_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DeploymentProcesses(tmp_path, {}) as processes:
        processes.start("server", "serve", "no/such/policy", "port=0")
        with pytest.raises(RunFailed, match="server ended with code 2") as error:
            processes.wait_for("The start", lambda: False, 120)
        assert "no/such/policy" in str(error.value) and "disk" not in str(error.value)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        with pytest.raises(RunFailed, match=r"The disk is full there\. Free some space, or set out to another disk"):
            processes.check()


def test_missing_log_folder_is_reported(tmp_path: Path) -> None:
    processes = DeploymentProcesses(tmp_path / "gone", {})
    with pytest.raises(StorageError, match=r"server\.log.*set out"):
        processes.start("server", "serve")


def test_killed_process_is_reported(tmp_path: Path) -> None:
    with DeploymentProcesses(tmp_path, {}) as processes:
        first = processes.start("robot", "serve", "asset:tabletop_base.safetensors", "port=0")
        second = processes.start("server", "serve", "asset:tabletop_base.safetensors", "port=0")
        processes.wait_for("The start", lambda: "ws://" in second.read_log() and "ws://" in first.read_log(), 120)
        os.kill(first.pid, signal.SIGKILL)
        with pytest.raises(RunFailed, match="robot was ended by SIGKILL"):
            processes.wait_for("The end", lambda: False, 120)
    assert gone(second.pid)


def test_wait_times_out(tmp_path: Path) -> None:
    with DeploymentProcesses(tmp_path, {}) as processes, pytest.raises(RunFailed, match="The start did not happen"):
        processes.wait_for("The start", lambda: False, 0.1)


def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_for(lambda: "ws://" in (tmp_path / "server.log").read_text())
        parent.kill()
        parent.wait()
        wait_for(lambda: gone(child), 60)


def test_process_with_hanging_library_ends_with_its_parent() -> None:
    command = [sys.executable, "-c", PARENT_OF_HANGING, HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        try:
            wait_for(lambda: gone(child), 60)
        finally:
            if not gone(child):
                os.kill(child, signal.SIGKILL)


def test_two_deployments_get_different_domain_ids() -> None:
    with reserve_domain_id() as one, reserve_domain_id() as other:
        assert one["ROS_DOMAIN_ID"] != other["ROS_DOMAIN_ID"]
        assert one["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
