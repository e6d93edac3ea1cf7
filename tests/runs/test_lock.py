"""One process at a time trains in a run folder; whoever has gone, in whatever way, keeps nobody out."""

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

from embodied_rl.runs.atomic_write import StorageError
from embodied_rl.runs.lock import BEATS, FILE, Holder, RunInUseError, hold_run

ELSEWHERE = Holder(4711, "node7", "another kernel", "2031-02-03T04:05:06+00:00")


def never(_: float) -> None:
    raise AssertionError("nothing is to be waited for")


class Watch:
    """Waits without waiting, and does something each time."""

    def __init__(self, act=lambda: None) -> None:
        self.waits, self.act = 0, act

    def __call__(self, _: float) -> None:
        self.waits += 1
        self.act()


@contextmanager
def another_process(folder: Path) -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """A process that holds the lock, and its child."""
    command = [sys.executable, "-m", "tests.support.holding_lock", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), psutil.Process(int(process.stdout.readline()))
        finally:
            process.kill()


def leave(folder: Path, holder: Holder) -> None:
    (folder / FILE).write_text(json.dumps(asdict(holder)))


@pytest.mark.process
def test_the_second_is_told_who_holds_it_and_what_to_do(tmp_path):
    with another_process(tmp_path) as (holder, _):
        with pytest.raises(RunInUseError) as caught, hold_run(tmp_path, never):
            pass
        said = Holder.read(tmp_path / FILE)
    assert said is not None
    for part in (str(tmp_path), f"process {holder.pid} on {platform.node()}", said.since, f"kill {holder.pid}",
                 f"policy.checkpoint={tmp_path}"):  # fmt: skip
        assert part in str(caught.value)


@pytest.mark.process
def test_a_killed_holder_keeps_nobody_out_nor_do_its_children(tmp_path):
    with another_process(tmp_path) as (holder, child):
        holder.kill()
        holder.wait()
        assert child.is_running() and Holder.read(tmp_path / FILE) is not None
        with hold_run(tmp_path, never):
            assert Holder.read(tmp_path / FILE).pid == os.getpid()


def test_a_process_id_that_is_used_again_proves_nothing(tmp_path):
    leave(tmp_path, replace(Holder.describe_this_process(), pid=os.getppid()))
    with hold_run(tmp_path, never):
        held = Holder.read(tmp_path / FILE)
        assert held is not None and held.pid == os.getpid()


def test_whoever_leaves_by_an_error_frees_it(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), hold_run(tmp_path, never):
            raise KeyboardInterrupt
        assert (tmp_path / FILE).read_text() == ""


@pytest.mark.parametrize(
    "left", [ELSEWHERE, replace(Holder.describe_this_process(), boot="before"), None], ids=["machine", "boot", "damage"]
)
def test_where_the_lock_proves_nothing_a_touched_file_is_in_use(tmp_path, left):
    leave(tmp_path, left) if left else (tmp_path / FILE).write_text("{")
    watch = Watch(lambda: os.utime(tmp_path / FILE, ns=(0, 10**9 * (watch.waits // 3))))
    os.utime(tmp_path / FILE, ns=(0, 0))
    with pytest.raises(RunInUseError, match=f"delete {tmp_path / FILE}"), hold_run(tmp_path, watch):
        pass
    assert watch.waits == 3
    assert Holder.read(tmp_path / FILE) == (left or Holder(0, "an unknown machine", "", "an unknown time"))


def test_one_that_nobody_touches_is_stale(tmp_path, capsys):
    leave(tmp_path, ELSEWHERE)
    watch = Watch()
    with hold_run(tmp_path, watch):
        assert watch.waits == BEATS + 1, "and one to see whether another took it at the same time"
        assert Holder.read(tmp_path / FILE).pid == os.getpid()
    assert "names process 4711 on node7: watching for" in capsys.readouterr().out


def test_of_two_that_watched_at_once_the_last_has_it(tmp_path):
    leave(tmp_path, ELSEWHERE)
    other = replace(ELSEWHERE, pid=815)
    watch = Watch(lambda: leave(tmp_path, other) if watch.waits == BEATS + 1 else None)
    with pytest.raises(RunInUseError, match="process 815 on node7"), hold_run(tmp_path, watch):
        pass
    assert Holder.read(tmp_path / FILE) == other


def test_a_file_system_without_locks_leaves_it_to_touches(tmp_path, monkeypatch):
    def missing(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", missing)
    leave(tmp_path, Holder.describe_this_process())
    watch = Watch(lambda: os.utime(tmp_path / FILE, ns=(0, watch.waits)))
    with pytest.raises(RunInUseError), hold_run(tmp_path, watch):
        pass
    (tmp_path / FILE).write_text("")
    watch = Watch()
    with hold_run(tmp_path, watch):
        assert watch.waits == 1


def test_the_holder_touches_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr("embodied_rl.runs.lock.BEAT", 0.01)
    with hold_run(tmp_path, never):
        os.utime(tmp_path / FILE, ns=(0, 0))
        until = time.monotonic() + 60
        while (tmp_path / FILE).stat().st_mtime_ns == 0:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_folder_that_is_gone_or_refuses_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"run\.lock.*run\.root"), hold_run(tmp_path / "gone", never):
        pass
    with hold_run(tmp_path, never):
        (tmp_path / FILE).unlink()


def test_a_full_disk_is_named_and_nothing_else(tmp_path, files_up_to):
    with (
        files_up_to(0),
        pytest.raises(StorageError, match=r"disk is full: could not write .*run\.lock"),
        hold_run(tmp_path),
    ):
        pass
    with hold_run(tmp_path):  # nothing is left that held it
        pass


def test_a_strangers_lock_file_writes_nothing_to_the_terminal(tmp_path: Path) -> None:
    said = {"pid": 1, "machine": "a\x1b[2Jb\n" + "c" * 999, "boot": "elsewhere", "since": "\x07now"}
    (tmp_path / FILE).write_text(json.dumps(said))
    holder = Holder.read(tmp_path / FILE)
    assert holder is not None and holder.machine.startswith("a?[2Jb?c") and len(holder.machine) == 80
    assert holder.since == "?now"
