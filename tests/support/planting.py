"""A folder as a stranger sends it, on a machine where everything shows that runs or leaves the folder."""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

WATCHED = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo")
"""What Python tells its audit hooks where a file that was opened could have its way."""

_NOTICED: list[str] | None = None
_UNREAD = ""
"""A folder of which no file is opened; empty for none."""


def _notice(event: str, args: tuple) -> None:
    if _NOTICED is None:
        return
    if event in WATCHED:
        _NOTICED.append(f"{event} {args!r:.200}")
    elif event == "import" and args[0] == "evil":
        _NOTICED.append("import evil")
    elif event == "open" and _UNREAD and str(args[0]).startswith(_UNREAD):
        _NOTICED.append(f"opened {args[0]}")


sys.addaudithook(_notice)


class Plant:
    """A machine with a stranger's folder on it.

    Attributes:
        sent: the stranger's folder. work: where commands are typed. outside: what belongs to the user alone.
        interpreter: a program of the stranger's that could be taken for a Python.
        modules: a folder to import from: `evil`, and what Python itself imports at its start.
        mark: it exists once a program of the stranger's has run.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "executed"
        self.sent, self.work, self.outside = folder / "sent", folder / "work", folder / "outside"
        self.interpreter, self.modules = folder / "python", self.work
        for made in (self.sent, self.work, self.outside):
            made.mkdir()
        (self.outside / "secret.json").write_text('{"secret": "hunter2"}')
        self.interpreter.write_text(f"#!/bin/sh\ntouch {self.mark}\n")
        self.interpreter.chmod(self.interpreter.stat().st_mode | stat.S_IXUSR)
        for name in ("evil", "sitecustomize", "usercustomize"):
            (self.modules / f"{name}.py").write_text(self.program)

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)

    @property
    def program(self) -> str:
        """Python code that leaves the mark."""
        return f"open({str(self.mark)!r}, 'w').close()\n"

    def watch(self, reads: bool = False) -> None:
        """Begin to notice; what lies outside now has to stay as it is, and with `reads` unread, too."""
        global _NOTICED, _UNREAD
        self._before = self._outside()
        _NOTICED, _UNREAD = [], str(self.outside) if reads else ""

    def find_harm(self) -> list[str]:
        """Return what ran, was looked for on a network, or changed outside of the folder, since `watch`."""
        global _NOTICED
        noticed, _NOTICED = _NOTICED or [], None
        now = self._outside()
        changed = sorted(name for name in now.keys() | self._before.keys() if now.get(name) != self._before.get(name))
        return [*(["the mark"] if self.mark.exists() else []), *noticed, *(f"changed {name}" for name in changed)]

    def _outside(self) -> dict[str, bytes]:
        """Return everything that is neither the stranger's nor where results belong."""
        top = self.sent.parent
        files = [file for place in top.iterdir() if place not in (self.sent, self.work) for file in _files(place)]
        return {str(file): file.read_bytes() for file in files}


def _files(place: Path) -> list[Path]:
    return [file for file in place.rglob("*") if file.is_file()] if place.is_dir() else [place]
