"""Read files that may come from a stranger: JSON that may be anything, and names that may lead out of their folder."""

import json
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from embodied_rl.interfaces.errors import UserError

DAMAGED_ARRAY = (OSError, ValueError, TypeError, SyntaxError, RuntimeError, MemoryError, tokenize.TokenError)
"""What NumPy raises for an array's file whose header is anything: it tokenizes and evaluates a literal."""
LONGEST_REASON = 200
"""Characters of an error's text that a message repeats."""


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
    """Name a file in every `UserError` of the `with` block that does not name it itself.

    Raises:
        UserError: of the same class, with the path before its message.
    """
    try:
        yield
    except UserError as problem:
        raise problem if str(path) in str(problem) else type(problem)(f"{path}: {problem}") from None


def shorten(problem: BaseException) -> str:
    """Return the text of an error as one line of limited length, without what a terminal would act on."""
    line = " ".join(str(problem).split())
    line = line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}…"
    return make_printable(line).rstrip(".") or type(problem).__name__


def make_printable(text: str) -> str:
    """Return a text without what a terminal would act on; line feeds stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def check_name(name: str, where: object, error: type[UserError] = UserError) -> None:
    """Check that the name of a file in a folder does not lead out of it.

    Raises:
        UserError: of the class `error`: the name is absolute, has a part "..", or cannot be printed.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or ".." in parts or not name.isprintable():
        raise error(f"{where} names the file {name!r:.200}, which does not lie in its folder, and is not opened.")


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
