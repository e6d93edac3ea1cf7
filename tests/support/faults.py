"""What can befall a training run, drawn by chance: which fault, when, and whom it hits."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from tests.support.running import Process

KINDS = ("kill", "kill", "kill", "signal", "full disk", "damage", "damage", "second resume")
SPACE = "64m"
"""Of the disk that is filled, where the system lets us mount one."""
CHECKED = (".safetensors", "state.json")
"""How names of files end whose every bit has a checksum. A changed digit elsewhere is what a user may have meant."""
_SAFE = 6_000
"""Bytes that a file may always have where files are limited: the output of the run is one of them."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: one of `KINDS`.
        milestone: "start", "folder", "iteration", "saving" or "finishing"; number: of the iteration.
        delay: seconds after the milestone.
        share: in 0 … 1: whom it hits of all processes, or which of all files.
        amount: in 0 … 1: where in the file, or how much space is left on the disk.
        choice: for what else is to be chosen.
    """

    kind: str
    milestone: str
    number: int
    delay: float
    share: float
    amount: float
    choice: int

    def __str__(self) -> str:
        number = f" {self.number}" if self.milestone in ("iteration", "saving") else ""
        return f"{self.kind} {self.delay:.2f} s after {self.milestone}{number}"

    def wait(self, process: Process) -> bool:
        """Wait for the moment; False where the process ended first."""
        if not process.wait_until(lambda: self._is_reached(process)):
            return False
        until = time.monotonic() + self.delay
        return process.wait_until(lambda: time.monotonic() > until)

    def _is_reached(self, process: Process) -> bool:
        if self.milestone == "start":
            return True
        if (run := process.run) is None or not (run / "config.yaml").is_file():
            return False
        if self.milestone == "iteration":
            return process.iterations() >= self.number
        if self.milestone == "saving":
            names = (path.name.removeprefix(".tmp-") for path in (run / "checkpoints").glob("*0*"))
            return any(name.isdigit() and int(name) >= self.number for name in names)
        return self.milestone == "folder" or (run / "eval" / "after").exists()


def draw_faults(seed: int, iterations: int) -> list[Fault]:
    """Draw one fault, or two in turn; the same seed gives the same ones."""
    rng = Random(f"fault {seed}")
    return [_draw(rng, iterations) for _ in range(rng.choice((1, 1, 2)))]


def _draw(rng: Random, iterations: int) -> Fault:
    kind = rng.choice(KINDS)
    milestones = ["folder", "iteration", "iteration", "iteration", "saving", "saving", "finishing"]
    milestone = rng.choice(milestones if kind in ("damage", "second resume") else ["start", *milestones])
    delay = rng.random() * {"start": 4.0, "folder": 2.0}.get(milestone, 0.3)
    return Fault(
        kind, milestone, rng.randint(1, iterations), delay, rng.random(), rng.random(), rng.randrange(1_000_000)
    )


def pick_process(process: Process, share: float) -> psutil.Process:
    """One process of a run: the first, or one of those that it started."""
    first = psutil.Process(process.process.pid)
    everybody = [first, *sorted(process.children(), key=lambda child: child.pid)]
    return everybody[int(share * len(everybody))]


def pick_file(run: Path, share: float) -> Path | None:
    """One file of a run's folder that holds something."""
    files = sorted(file for file in run.rglob("*") if file.is_file() and file.stat().st_size)
    return files[int(share * len(files))] if files else None


def damage(file: Path, fault: Fault) -> str:
    """Damage a file as disks and careless people do; returns how."""
    content = file.read_bytes()
    place = int(fault.amount * len(content))
    zeroed = content[:place] + bytes(min(512, len(content) - place)) + content[place + 512 :]
    ways: dict[str, bytes | None] = {"removed": None, "emptied": b"", "cut off": content[:place], "zeroed": zeroed}
    if file.name.endswith(CHECKED):
        flipped = bytes([content[place] ^ 1 << fault.choice % 8])
        ways["changed in one bit"] = content[:place] + flipped + content[place + 1 :]
    how = list(ways)[fault.choice % len(ways)]
    if (left := ways[how]) is None:
        file.unlink()
    else:
        file.write_bytes(left)
    return how


class Disk:
    """Where runs are written, with a disk that can be full: of its own if the system lets us mount one.

    Otherwise the files of the run's processes may not grow beyond a size, which the system reports likewise.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SPACE}", "tmpfs", str(folder)]
        self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        self._filler = folder / "filler"

    def fill(self, process: Process, amount: float) -> None:
        """Leave some space, none to 200 kB: a checkpoint may just fit."""
        left = int(amount**3 * 200_000)
        if not self.mounted:
            for each in (psutil.Process(process.process.pid), *process.children()):
                with suppress(psutil.NoSuchProcess):
                    each.rlimit(psutil.RLIMIT_FSIZE, (_SAFE + left, _SAFE + left))
            return
        with self._filler.open("wb") as file, suppress(OSError):
            size = os.statvfs(self._folder).f_bavail * os.statvfs(self._folder).f_frsize
            if size > left:
                os.posix_fallocate(file.fileno(), 0, size - left)

    def clear(self) -> None:
        """Give the space back."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)


@contextmanager
def opened_disk(folder: Path) -> Iterator[Disk]:
    """A disk for the runs of one folder, for a while."""
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.close()


STOPS = (signal.SIGTERM, signal.SIGHUP)
