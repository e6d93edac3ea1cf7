"""Lines for the person at the terminal, also from processes whose own output goes to a log."""

import os
import sys

DESCRIPTOR = "EMBODIED_RL_TERMINAL"
"""Environment variable of a new child process: the descriptor of the command's output."""

_received: list[int] = []


def tell_person(line: str) -> None:
    """Print a line where the command's output goes, in any process of the command on this machine."""
    if _received:
        os.write(_received[0], f"{line}\n".encode())
    else:
        print(line, flush=True)


def open_terminal() -> int:
    """Return a new descriptor of the command's output, for a child; the caller closes it."""
    if not _received and sys.__stdout__ is None:
        return os.open(os.devnull, os.O_WRONLY)
    return os.dup(_received[0] if _received else 1)


def receive_terminal() -> None:
    """Take the descriptor that this child process was given, so that other programs it starts do not have it."""
    descriptor = int(os.environ.pop(DESCRIPTOR))
    os.set_inheritable(descriptor, False)
    _received.append(descriptor)
