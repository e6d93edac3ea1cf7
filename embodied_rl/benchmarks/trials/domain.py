"""Reserve an unused ROS 2 domain id on this machine's loopback interface."""

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embodied_rl.interfaces.errors import RunFailed

DOMAINS = range(20, 100)
"""Domains whose UDP ports lie below those that Linux gives to other programs."""
FIRST_PORT, PORTS_EACH = 7400, 250
PARTICIPANTS = 8
"""Of a domain, whose ports are looked at."""


@contextmanager
def reserve_domain_id() -> Iterator[dict[str, str]]:
    """Reserve a free domain id for this process; yield the environment variables that put ROS 2's nodes there.

    Raises:
        RunFailed: all are in use, or the lock files cannot be opened.
    """
    folder = Path(tempfile.gettempdir(), f"embodied-rl-domains-{os.getuid()}")
    for domain in DOMAINS:
        try:
            _check_own_folder(folder)
            file = open(folder / str(domain), "a", opener=_open_no_link)  # noqa: SIM115 - closed below
        except OSError as error:
            remedy = "Remove it, or set TMPDIR to a folder of your own."
            raise RunFailed(f"{folder} cannot hold lock files: {error}. {remedy}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not _is_silent(domain):
                continue
            yield {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
            return
    raise RunFailed(f"All domains of ROS 2 from {DOMAINS[0]} to {DOMAINS[-1]} are in use on this machine.")


def _check_own_folder(folder: Path) -> None:
    """Make the folder, if it is not there; check that no other user can put links there.

    Raises:
        OSError: it is a link or a file, belongs to another user, or others may write to it.
    """
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError("it is no folder that only you can write to")


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _is_silent(domain: int) -> bool:
    """Return whether the ports of a domain's first participants are free."""
    for participant in range(PARTICIPANTS):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", FIRST_PORT + PORTS_EACH * domain + 10 + 2 * participant))
            except OSError:
                return False
    return True
