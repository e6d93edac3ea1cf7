"""Readers of untrusted files: invalid JSON, paths and links out of a folder, and server responses with secrets.

Functions with an argument `error` raise this subclass of `UserError`. `where` is the file, for the message.
"""

import html
import json
import os
import re
import tokenize
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from embodied_rl.interfaces.errors import UserError

DAMAGED_ARRAY = (OSError, ValueError, TypeError, SyntaxError, RuntimeError, MemoryError, tokenize.TokenError)
"""Exceptions of NumPy for an array's file with a damaged header: it tokenizes and evaluates a literal."""
LONGEST_REASON = 200
"""Characters of an error's text that a message repeats."""
SHORTEST_SECRET = 6
"""Smallest number of characters of a secret that is replaced; shorter ones may be ordinary words."""


def parse_json(text: str | bytes, where: object, error: type[UserError] = UserError) -> Any:
    """Parse untrusted JSON, text or bytes in UTF-8; refuse deep nesting, and numbers with too many digits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:  # ValueError: no JSON, no UTF-8, or too many digits
        raise error(f"{where} is damaged: {shorten(problem)}.", code="file-damaged") from problem


def read_json(path: Path, error: type[UserError] = UserError) -> Any:
    """Read a JSON file; see `read_whole` and `parse_json`."""
    return parse_json(read_whole(path, error), path, error)


def read_whole(path: Path, error: type[UserError] = UserError) -> bytes:
    """Read a file that `check_ends` accepts."""
    try:
        check_ends(path, error)
        return path.read_bytes()
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}.", code="file-unreadable") from problem


def check_ends(path: Path, error: type[UserError] = UserError) -> None:
    """Check that a path is no pipe, socket or device, of which reading may never end; it need not exist."""
    if path.exists() and not path.is_file() and not path.is_dir():
        message = f"{path} is a pipe, a socket or a device, and is not opened: put a file in its place."
        raise error(message, code="file-special")


@contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Put the path of a file before the message of each `UserError` of the `with` block that lacks it."""
    try:
        yield
    except UserError as problem:
        if str(path) in str(problem):
            raise
        raise type(problem)(f"{path}: {problem}", code=problem.code) from None


def shorten(problem: BaseException) -> str:
    """Return the text of an error as one line of limited length, without control characters."""
    line = " ".join(str(problem).split())
    line = line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}…"
    return make_printable(line).rstrip(".") or type(problem).__name__


def make_printable(text: str) -> str:
    """Return a text with each control character but line feeds replaced by "?"."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


class SecretFilter:
    """Replaces a secret in a server's response by the same number of asterisks, so that lengths in binary formats stay.

    The secret is found literally, with letters escaped as in JSON, Python, URLs and HTML, and in base64.
    Secrets shorter than `SHORTEST_SECRET` stay.
    """

    def __init__(self, secret: str | None) -> None:
        self._pattern = None
        if secret is not None and len(secret) >= SHORTEST_SECRET:
            forms = ["".join(map(_match_letter, secret))]
            for text in (secret, f"Bearer {secret}"):
                encoded = b64encode(text.encode()).decode().rstrip("=")
                forms += [re.escape(each) for each in {encoded, encoded.translate(str.maketrans("+/", "-_"))}]
            self._pattern = re.compile("|".join(forms).encode())

    def clean(self, data: bytes) -> bytes:
        """Return the data without the secret."""
        if self._pattern is None:
            return data
        return self._pattern.sub(lambda found: b"*" * len(found[0]), data)

    def clean_text(self, text: str) -> str:
        """Return the text without the secret."""
        return self.clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _match_letter(letter: str) -> str:
    """Return a regular expression of an ASCII letter, escaped or not."""
    number, named = ord(letter), re.escape(html.escape(letter))
    hexadecimal = "".join(f"[{digit}{digit.upper()}]" for digit in f"{number:02x}")
    escaped = rf"\\{{0,2}}(?:u00|x){hexadecimal}|%{hexadecimal}|&#(?:0*{number}|[xX]0*{hexadecimal});|{named}"
    return rf"(?:{escaped}|\\{{0,2}}{re.escape(letter)})"


def check_name(name: str, where: object, error: type[UserError] = UserError) -> None:
    """Check that the name of a file in a folder does not lead out of it, and can be printed."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or ".." in parts or not name.isprintable():
        message = f"{where} names the file {name!r:.200}, which is not in its folder, and is not opened."
        raise error(message, code="path-outside-folder")


def check_links(folder: Path) -> None:
    """Check that no link in a folder leads out of it, before a program writes there; see `check_inside`."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(place, name)).is_symlink():
                check_inside(folder, path)


def check_inside(folder: Path, file: Path, error: type[UserError] = UserError) -> None:
    """Check that a file neither is nor is below a link out of the folder, or to itself.

    The cache of Hugging Face's hub may link to its blobs.
    """
    try:
        top, real = folder.resolve(), file.resolve()
    except RuntimeError:
        raise error(f"{file} is a link to itself: put a copy in its place.", code="link-circular") from None
    blobs = [each.parent / "blobs" for each in top.parents if each.name == "snapshots"]
    if not any(real.is_relative_to(home) for home in (top, *blobs)):
        message = f"{file} is a link to {real}, outside of {folder}, and is not opened: put a copy in its place."
        raise error(message, code="link-outside-folder")
