"""One process at a time trains in a run folder; a process that has ended does not block it."""

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from embodied_rl.runs.lock import FILE, WATCHED_TOUCHES, LockOwner, RunInUseError, hold_run
from embodied_rl.system.atomic_write import StorageError
from tests.support.refusals import refuses

ELSEWHERE = LockOwner(4711, "node7", "another kernel", "2031-02-03T04:05:06+00:00")


def never(_: float) -> None:
    raise AssertionError("no wait is expected")


class Watch:
    """A fake `wait` that counts its calls and calls `act` each time."""

    def __init__(self, act=lambda: None) -> None:
        self.waits, self.act = 0, act

    def __call__(self, _: float) -> None:
        self.waits += 1
        self.act()


@contextmanager
def another_process(folder: Path) -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """Start a process that holds the lock; yield it and its child."""
    command = [sys.executable, "-m", "tests.support.holding_lock", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), psutil.Process(int(process.stdout.readline()))
        finally:
            process.kill()


def leave(folder: Path, holder: LockOwner) -> None:
    (folder / FILE).write_text(json.dumps(asdict(holder)))


@pytest.mark.process
def test_a_second_process_gets_the_owner_and_a_remedy(tmp_path):
    with another_process(tmp_path) as (holder, _):
        owner = LockOwner.read(tmp_path / FILE)
        data = f"process {holder.pid} on {platform.node()}", f"kill {holder.pid}", f"policy.checkpoint={tmp_path}"
        with refuses("run-in-use", tmp_path, *data, owner.since, kind=RunInUseError), hold_run(tmp_path, never):
            pass


@pytest.mark.process
def test_a_killed_owner_and_its_children_do_not_hold_the_lock(tmp_path):
    with another_process(tmp_path) as (holder, child):
        holder.kill()
        holder.wait()
        assert child.is_running() and LockOwner.read(tmp_path / FILE) is not None
        with hold_run(tmp_path, never):
            assert LockOwner.read(tmp_path / FILE).pid == os.getpid()


def test_neither_an_error_nor_a_reused_process_id_holds_the_lock(tmp_path):
    leave(tmp_path, replace(LockOwner.of_this_process(), pid=os.getppid()))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), hold_run(tmp_path, never):
            held = LockOwner.read(tmp_path / FILE)
            assert held is not None and held.pid == os.getpid()
            raise KeyboardInterrupt
        assert (tmp_path / FILE).read_text() == ""


@pytest.mark.parametrize(
    "left", [ELSEWHERE, replace(LockOwner.of_this_process(), boot="before"), None], ids=["machine", "boot", "damage"]
)
def test_a_touched_file_of_another_machine_is_in_use(tmp_path, left):
    leave(tmp_path, left) if left else (tmp_path / FILE).write_text("{")
    watch = Watch(lambda: os.utime(tmp_path / FILE, ns=(0, 10**9 * (watch.waits // 3))))
    os.utime(tmp_path / FILE, ns=(0, 0))
    with refuses("run-in-use", f"delete {tmp_path / FILE}"), hold_run(tmp_path, watch):
        pass
    assert watch.waits == 3
    assert LockOwner.read(tmp_path / FILE) == (left or LockOwner(0, "an unknown machine", "", "an unknown time"))


def test_an_untouched_file_of_another_machine_is_stale(tmp_path, capsys):
    leave(tmp_path, ELSEWHERE)
    watch = Watch()
    with hold_run(tmp_path, watch):
        assert watch.waits == WATCHED_TOUCHES + 1, "and one for another process that watched at the same time"
        assert LockOwner.read(tmp_path / FILE).pid == os.getpid()
    assert "process 4711 on node7" in capsys.readouterr().out


def test_the_last_of_two_watching_processes_has_the_lock(tmp_path):
    leave(tmp_path, ELSEWHERE)
    other = replace(ELSEWHERE, pid=815)
    watch = Watch(lambda: leave(tmp_path, other) if watch.waits == WATCHED_TOUCHES + 1 else None)
    with refuses("run-in-use", "process 815 on node7"), hold_run(tmp_path, watch):
        pass
    assert LockOwner.read(tmp_path / FILE) == other


def test_touches_are_used_on_a_file_system_without_locks(tmp_path, monkeypatch):
    def missing(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", missing)
    leave(tmp_path, LockOwner.of_this_process())
    watch = Watch(lambda: os.utime(tmp_path / FILE, ns=(0, watch.waits)))
    with pytest.raises(RunInUseError), hold_run(tmp_path, watch):
        pass
    (tmp_path / FILE).write_text("")
    watch = Watch()
    with hold_run(tmp_path, watch):
        assert watch.waits == 1


def test_the_owner_touches_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr("embodied_rl.runs.lock.TOUCH_S", 0.01)
    with hold_run(tmp_path, never):
        os.utime(tmp_path / FILE, ns=(0, 0))
        until = time.monotonic() + 60
        while (tmp_path / FILE).stat().st_mtime_ns == 0:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_missing_folder_is_reported(tmp_path):
    with refuses("path-gone", "run.lock", "run.root", kind=StorageError), hold_run(tmp_path / "gone", never):
        pass
    with hold_run(tmp_path, never):
        (tmp_path / FILE).unlink()


def test_a_full_disk_is_reported_and_frees_the_lock(tmp_path, files_up_to):
    with files_up_to(0), refuses("disk-full", "run.lock"), hold_run(tmp_path):
        pass
    with hold_run(tmp_path):
        pass


def test_control_characters_of_a_lock_file_are_replaced(tmp_path: Path) -> None:
    content = {"pid": 1, "machine": "a\x1b[2Jb\n" + "c" * 999, "boot": "elsewhere", "since": "\x07now"}
    (tmp_path / FILE).write_text(json.dumps(content))
    holder = LockOwner.read(tmp_path / FILE)
    assert holder is not None and holder.machine.startswith("a?[2Jb?c") and len(holder.machine) == 80
    assert holder.since == "?now"
