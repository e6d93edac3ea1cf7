"""The lock of a run folder, so that one process at a time trains in it.

The operating system locks `run.lock` and frees it when the process ends, by `kill -9`, too; a process id in its text
proves nothing, as ids are used again. The system's lock may not reach another machine, and some file systems have none.
Therefore the holder also touches the file every few seconds. Where another machine, or this one before it was started
anew, left its name in the file, a process that wants the lock watches whether the file is still touched.
"""

import errno
import fcntl
import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.atomic_write import explain_errors
from embodied_rl.runs.untrusted_files import check_ends, check_links

FILE = "run.lock"
"""In a run's folder; empty while no process holds the lock."""
BEAT = 5.0
"""Seconds between two touches of the file."""
BEATS = 6
"""How many of them a process that wants the lock waits for."""
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class RunInUseError(UserError):
    """An error raised if another process trains in the run folder."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, as the file says.

    Attributes:
        boot: names the running kernel: what shares it shares the system's locks. since: UTC, ISO 8601.
    """

    pid: int
    machine: str
    boot: str
    since: str

    @classmethod
    def describe_this_process(cls) -> "Holder":
        """Return this process as a holder from now on."""
        boot = _BOOT.read_text(encoding="utf-8").strip() if _BOOT.is_file() else platform.node()
        return cls(os.getpid(), platform.node(), boot, datetime.now(UTC).isoformat(timespec="seconds"))

    @classmethod
    def read(cls, path: Path) -> "Holder | None":
        """Return the holder that a lock file names; None for an empty file. Unreadable text names an unknown one."""
        text = path.read_text(encoding="utf-8", errors="replace")
        if not text:
            return None
        try:
            said = json.loads(text)
            return cls(int(said["pid"]), *(_show(said[key]) for key in ("machine", "boot", "since")))
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls(0, "an unknown machine", "", "an unknown time")


def _show(text: object) -> str:
    """Return a text of a lock file, which may be a stranger's, without what a terminal would act on."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:80])


@contextmanager
def hold_run(
    folder: Path, wait: Callable[[float], object] = time.sleep, say: Callable[[str], object] = print
) -> Iterator[None]:
    """Hold the lock of a run folder in the context.

    Args:
        folder: of the run.
        wait: waits for so many seconds.
        say: tells the user why it waits.

    Raises:
        RunInUseError: another process holds the lock; the message names the process and what to do.
        StorageError: the folder cannot be written.
        UserError: the folder holds a link that leads out of it, or the lock is a pipe.
    """
    path, own = folder / FILE, Holder.describe_this_process()
    check_links(folder)  # somebody may have sent the run, and it is written to from now on
    check_ends(path)
    with explain_errors(path):
        file = path.open("a+", encoding="utf-8")
    try:
        _take(file, path, own, wait, say)
        try:
            with _touch_regularly(file):
                yield
        finally:
            with suppress(OSError):  # the folder is gone, which the run's own writes report
                file.truncate(0)
    finally:
        with suppress(OSError):  # closing writes again what a full disk refused, which was reported
            file.close()


def _take(
    file: IO[str], path: Path, own: Holder, wait: Callable[[float], object], say: Callable[[str], object]
) -> None:
    locked, before = _lock(file, path, own), Holder.read(path)
    certain = locked and (before is None or before.boot == own.boot)
    if before is not None and not certain:
        say(f"{path} names process {before.pid} on {before.machine}: watching for {BEAT * BEATS:g} s if it still runs.")
        if _is_touched(path, wait):
            raise _refuse(path, before, own)
    _write(file, own)
    if not certain:  # perhaps two processes have watched at the same time: the last that wrote has the lock
        wait(BEAT)
        if (now := Holder.read(path)) != own:
            raise _refuse(path, now, own)


def _lock(file: IO[str], path: Path, own: Holder) -> bool:
    """Lock a file for this process. Return whether the file system has locks.

    Raises:
        RunInUseError: another process has locked it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _refuse(path, Holder.read(path), own) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def _refuse(path: Path, holder: Holder | None, own: Holder) -> RunInUseError:
    """Return the error that names the holder and what to do."""
    run = path.parent
    if holder is None:  # it has not written its name yet
        return RunInUseError(f"{run} is in use: another process has just begun to train in it. Wait for it to end.")
    remedy = "" if holder.boot == own.boot else f" If that machine is gone for good, delete {path}."
    return RunInUseError(
        f"{run} is in use: process {holder.pid} on {holder.machine} trains in it since {holder.since}. Wait "
        f"for it to end, or stop it there (kill {holder.pid}), then resume. To train beside it, start a new run from "
        f"its weights: policy.checkpoint={run}.{remedy}"
    )


def _write(file: IO[str], own: Holder) -> None:
    with explain_errors(Path(file.name)):
        file.truncate(0)
        file.write(json.dumps(asdict(own)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _is_touched(path: Path, wait: Callable[[float], object]) -> bool:
    """Watch a lock file. Return whether its holder still touches it."""
    before = _read_touch(path)
    for _ in range(BEATS):
        wait(BEAT)
        if _read_touch(path) != before:
            return True
    return False


def _read_touch(path: Path) -> int:
    """Return when a file was last touched; a network file system asks its server when a file is opened."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns


@contextmanager
def _touch_regularly(file: IO[str]) -> Iterator[None]:
    ended = threading.Event()

    def touch() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        while not ended.wait(BEAT):
            with suppress(OSError):  # the folder is gone, which the run's own writes report
                os.utime(file.fileno())

    thread = threading.Thread(target=touch, name="run-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
