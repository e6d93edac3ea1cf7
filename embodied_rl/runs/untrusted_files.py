"""Read what may come from a stranger: JSON that may be anything, names that may lead out of their folder, and answers
of servers that may repeat a secret."""

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
"""What NumPy raises for an array's file whose header is anything: it tokenizes and evaluates a literal."""
LONGEST_REASON = 200
"""Characters of an error's text that a message repeats."""
SHORTEST_SECRET = 6
"""Characters of a secret that is replaced: a shorter one is a word that answers may have."""


def parse_json(text: str | bytes, where: object, error: type[UserError] = UserError) -> Any:
    """Parse JSON, whatever it holds.

    Args:
        text: the text, or its bytes in UTF-8.
        where: the file, for the message.
        error: the class to raise.

    Raises:
        UserError: of the class `error`: the text is no JSON, nests too deep, or has a number with too many digits.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:  # ValueError: no JSON, no UTF-8, or too many digits
        raise error(f"{where} is damaged: {shorten(problem)}.") from problem


def read_json(path: Path, error: type[UserError] = UserError) -> Any:
    """Read a JSON file.

    Raises:
        UserError: of the class `error`: the file cannot be read, or see `parse_json`.
    """
    return parse_json(read_whole(path, error), path, error)


def read_whole(path: Path, error: type[UserError] = UserError) -> bytes:
    """Read a file.

    Raises:
        UserError: of the class `error`: the file cannot be read, or see `check_ends`.
    """
    try:
        check_ends(path, error)
        return path.read_bytes()
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}.") from problem


def check_ends(path: Path, error: type[UserError] = UserError) -> None:
    """Check that what lies at a path, if anything does, has an end.

    Raises:
        UserError: of the class `error`: it is a pipe, which would be waited for, or a device, which may never end.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise error(f"{path} is a pipe, a socket or a device, and is not opened: put a file in its place.")


@contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Add the name of a file to each `UserError` of the `with` block that lacks it.

    Raises:
        UserError: of the same class, with the path before its message.
    """
    try:
        yield
    except UserError as problem:
        if str(path) in str(problem):
            raise
        raise type(problem)(f"{path}: {problem}", code=problem.code) from None


def shorten(problem: BaseException) -> str:
    """Return the text of an error as one line of limited length, without what a terminal would act on."""
    line = " ".join(str(problem).split())
    line = line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}…"
    return make_printable(line).rstrip(".") or type(problem).__name__


def make_printable(text: str) -> str:
    """Return a text without what a terminal would act on; line feeds stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


class SecretFilter:
    """Replaces a secret in what a server says, by as many asterisks, so that lengths in a binary format stay right.

    It is found as it is, with each letter possibly escaped as JSON, Python, URLs and HTML do, and in base64.
    Secrets shorter than `SHORTEST_SECRET` stay.
    """

    def __init__(self, secret: str | None) -> None:
        known = secret if secret is not None and len(secret) >= SHORTEST_SECRET else None
        self._pattern = None if known is None else re.compile("|".join(_list_forms(known)).encode())

    def clean(self, data: bytes) -> bytes:
        """Return the data without the secret."""
        if self._pattern is None:
            return data
        return self._pattern.sub(lambda found: b"*" * len(found[0]), data)

    def clean_text(self, text: str) -> str:
        """Return the text without the secret."""
        return self.clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _list_forms(secret: str) -> list[str]:
    """Return regular expressions of the forms in which a secret may be repeated."""
    encoded = (b64encode(text.encode()).decode().rstrip("=") for text in (secret, f"Bearer {secret}"))
    forms = [re.escape(each) for text in encoded for each in {text, text.translate(str.maketrans("+/", "-_"))}]
    return ["".join(map(_match_letter, secret)), *forms]


def _match_letter(letter: str) -> str:
    """Return a regular expression of a letter of ASCII, escaped or not."""
    number, named = ord(letter), re.escape(html.escape(letter))
    hexadecimal = "".join(f"[{digit}{digit.upper()}]" for digit in f"{number:02x}")
    escaped = rf"\\{{0,2}}(?:u00|x){hexadecimal}|%{hexadecimal}|&#(?:0*{number}|[xX]0*{hexadecimal});|{named}"
    return rf"(?:{escaped}|\\{{0,2}}{re.escape(letter)})"


def check_name(name: str, where: object, error: type[UserError] = UserError) -> None:
    """Check that the name of a file in a folder does not lead out of it.

    Raises:
        UserError: of the class `error`: the name is absolute, has a part "..", or cannot be printed.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or ".." in parts or not name.isprintable():
        raise error(f"{where} names the file {name!r:.200}, which does not lie in its folder, and is not opened.")


def check_links(folder: Path) -> None:
    """Check that nothing in a folder is a link out of it, before a program writes there.

    Raises:
        UserError: see `check_inside`.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(place, name)).is_symlink():
                check_inside(folder, path)


def check_inside(folder: Path, file: Path, error: type[UserError] = UserError) -> None:
    """Check that a file does not lead out of a folder by a link. The cache of Hugging Face's hub links into its blobs.

    Raises:
        UserError: of the class `error`: the file is a link, or lies behind one, that ends outside of the folder, or
            nowhere.
    """
    try:
        top, real = folder.resolve(), file.resolve()
    except RuntimeError:
        raise error(f"{file} is a link that leads back to itself: put a copy in its place.") from None
    homes = [top, top.parents[1] / "blobs"] if top.parent.name == "snapshots" else [top]
    if not any(real.is_relative_to(home) for home in homes):
        raise error(f"{file} is a link to {real}, outside of {folder}, and is not opened: put a copy in its place.")
