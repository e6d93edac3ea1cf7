"""Lock of a run folder, so that one process at a time trains in it.

The operating system locks `run.lock` and frees it when the process ends, even by `kill -9`. The process id in the file
proves nothing, because ids are used again. The system's lock may not apply to other machines, and some file systems
have none. The owner therefore also touches the file every few seconds. If the file names another machine, or this one
before a reboot, a process that wants the lock first checks whether the file is still touched.
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
from embodied_rl.system.atomic_write import explain_errors
from embodied_rl.system.untrusted_files import check_ends, check_links, make_printable

FILE = "run.lock"
"""In a run's folder; empty while no process holds the lock."""
TOUCH_S = 5.0
"""Seconds between two touches of the file."""
WATCHED_TOUCHES = 6
"""Number of these intervals for which a process that wants the lock watches the file."""
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class RunInUseError(UserError):
    """Another process trains in the run folder."""


@dataclass(frozen=True)
class LockOwner:
    """The process that holds a lock, according to the file.

    Attributes:
        boot: id of the running kernel; processes with the same id share the system's locks. since: UTC, ISO 8601.
    """

    pid: int
    machine: str
    boot: str
    since: str

    @classmethod
    def of_this_process(cls) -> "LockOwner":
        """Return this process as the owner from now on."""
        boot = _BOOT.read_text(encoding="utf-8").strip() if _BOOT.is_file() else platform.node()
        return cls(os.getpid(), platform.node(), boot, datetime.now(UTC).isoformat(timespec="seconds"))

    @classmethod
    def read(cls, path: Path) -> "LockOwner | None":
        """Return the owner that a lock file names, None for an empty file, or an unknown owner for a damaged one."""
        text = path.read_text(encoding="utf-8", errors="replace")
        if not text:
            return None
        try:
            content = json.loads(text)
            # The file may come from someone else: no control characters reach the terminal.
            texts = [str(content[key])[:80] for key in ("machine", "boot", "since")]
            return cls(int(content["pid"]), *(make_printable(text.replace("\n", "?")) for text in texts))
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls(0, "an unknown machine", "", "an unknown time")


@contextmanager
def hold_run(
    folder: Path, wait: Callable[[float], object] = time.sleep, say: Callable[[str], object] = print
) -> Iterator[None]:
    """Hold the lock of a run folder in the context; `wait` waits for seconds, `say` shows the user why.

    Raises:
        RunInUseError: another process holds the lock; the message names the process and a remedy.
        StorageError: the folder cannot be written.
        UserError: the folder holds a link that leads out of it, or the lock is a pipe.
    """
    path, own, ended = folder / FILE, LockOwner.of_this_process(), threading.Event()
    check_links(folder)  # the run may come from someone else, and is written to from now on
    check_ends(path)
    with explain_errors(path):
        file = path.open("a+", encoding="utf-8")

    def touch() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread handles signals
        while not ended.wait(TOUCH_S):
            with suppress(OSError):  # the folder is gone, which the run's own writes report
                os.utime(file.fileno())

    try:
        _take_lock(file, path, own, wait, say)
        thread = threading.Thread(target=touch, name="run-lock", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with suppress(OSError):  # the folder is gone, which the run's own writes report
                file.truncate(0)
    finally:
        with suppress(OSError):  # closing retries a failed write, which was reported
            file.close()


def _take_lock(
    file: IO[str], path: Path, own: LockOwner, wait: Callable[[float], object], say: Callable[[str], object]
) -> None:
    locked = True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _make_error(path, LockOwner.read(path), own) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        locked = False  # the file system has no locks
    before = LockOwner.read(path)
    certain = locked and (before is None or before.boot == own.boot)

    def read_touch() -> int:
        with path.open("rb") as opened:  # so that a network file system asks its server
            return os.fstat(opened.fileno()).st_mtime_ns

    if before is not None and not certain:
        seconds = TOUCH_S * WATCHED_TOUCHES
        say(f"{path} names process {before.pid} on {before.machine}: checking for {seconds:g} s whether it still runs.")
        last_touch = read_touch()
        for _ in range(WATCHED_TOUCHES):
            wait(TOUCH_S)
            if read_touch() != last_touch:
                raise _make_error(path, before, own)
    with explain_errors(Path(file.name)):
        file.truncate(0)
        file.write(json.dumps(asdict(own)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    if not certain:  # if two processes have watched at the same time, the last one that wrote has the lock
        wait(TOUCH_S)
        if (now := LockOwner.read(path)) != own:
            raise _make_error(path, now, own)


def _make_error(path: Path, owner: LockOwner | None, own: LockOwner) -> RunInUseError:
    run, code = path.parent, "run-in-use"
    if owner is None:  # it has not written its name yet
        return RunInUseError(f"{run} is in use: another process has just started to train in it. Wait for it.", code)
    remedy = "" if owner.boot == own.boot else f" If that machine no longer exists, delete {path}."
    return RunInUseError(
        f"{run} is in use: process {owner.pid} on {owner.machine} trains in it since {owner.since}. Wait for it to "
        f"end, or stop it there (kill {owner.pid}), then resume. To train in parallel, start a new run from its "
        f"weights: policy.checkpoint={run}.{remedy}",
        code,
    )
