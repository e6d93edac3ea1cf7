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
"""Domain ids whose UDP ports lie below Linux's range of ephemeral ports."""
FIRST_PORT, PORTS_EACH = 7400, 250
PARTICIPANTS = 8
"""Number of participants of a domain whose ports are checked."""


@contextmanager
def reserve_domain_id() -> Iterator[dict[str, str]]:
    """Reserve a free domain id for this process; yield the environment variables that put ROS 2's nodes there.

    Raises:
        RunFailed: all are in use, or the lock files cannot be opened.
    """
    open_no_follow = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)  # noqa: E731
    folder = Path(tempfile.gettempdir(), f"embodied-rl-domains-{os.getuid()}")
    for domain in DOMAINS:
        try:
            with suppress(FileExistsError):
                folder.mkdir(0o700)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise PermissionError("it must be a folder that only you can write to")
            file = open(folder / str(domain), "a", opener=open_no_follow)  # noqa: SIM115 - closed below
        except OSError as error:
            raise RunFailed(
                f"{folder} cannot hold lock files: {error}. Remove it, or set TMPDIR to another folder."
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not _has_free_ports(domain):
                continue
            yield {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
            return
    raise RunFailed(f"All domains of ROS 2 from {DOMAINS[0]} to {DOMAINS[-1]} are in use on this machine.")


def _has_free_ports(domain: int) -> bool:
    """Return whether the ports of a domain's first participants are free."""
    for participant in range(PARTICIPANTS):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", FIRST_PORT + PORTS_EACH * domain + 10 + 2 * participant))
            except OSError:
                return False
    return True
