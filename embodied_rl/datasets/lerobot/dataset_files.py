"""Files of a dataset: places and names, also untrusted ones, atomic replacement, and the lock of a writer."""

import fcntl
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Formatter
from typing import NamedTuple

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import TEMPORARY
from embodied_rl.system.untrusted_files import check_ends, check_inside, check_name

KEY = "the dataset's folder"
"""Name of the setting to change, in errors."""


class DatasetError(UserError):
    """A dataset cannot be used; the message names the dataset, the reason and the remedy."""


def damaged(text: str) -> DatasetError:
    """Return the error of a damaged dataset."""
    return DatasetError(text, code="dataset-damaged")


class FilePlace(NamedTuple):
    """The place of a file: the number of its folder (chunk), and its own number."""

    chunk: int
    file: int

    def following(self, chunks_size: int) -> "FilePlace":
        """Return the place of the next file, with `chunks_size` files per folder."""
        return FilePlace(self.chunk + 1, 0) if self.file >= chunks_size - 1 else FilePlace(self.chunk, self.file + 1)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder, which the system releases when the process ends.

    Raises:
        DatasetError: another process writes to the folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(
                f"{folder}: another writer has this dataset open. Give each process its own folder.",
                code="dataset-in-use",
            ) from None
        yield
    finally:
        os.close(descriptor)


def remove_beyond(folder: Path, last: FilePlace | None, suffix: str) -> None:
    """Remove the remains of a killed writer from a folder of chunks: unfinished files, and files after `last`."""
    for path in folder.glob(f"chunk-*/{TEMPORARY}*"):
        path.unlink()
    for path in folder.glob(f"chunk-*/file-*{suffix}"):
        place = FilePlace(int(path.parent.name.removeprefix("chunk-")), int(path.stem.removeprefix("file-")))
        if last is None or place > last:
            path.unlink()


def find_file(folder: Path, name: str) -> Path:
    """Return the absolute path of a dataset's file, which no reader can mistake for a URL.

    Raises:
        DatasetError: the file is a link out of the folder, a pipe or a device.
    """
    check_inside(folder, folder / name, DatasetError)
    check_ends(folder / name, DatasetError)
    return (folder / name).absolute()


def check_pattern(pattern: object, fields: Collection[str], where: str) -> None:
    """Check an untrusted pattern of file names.

    It is text with `fields` in braces, such as `{chunk_index:03d}`, and without other features of `str.format`: no
    attributes, items, conversions or wide numbers. `where` is the file and the key.

    Raises:
        DatasetError: the pattern is not text, has other fields, or leads out of the dataset's folder.
    """
    try:
        parts = list(Formatter().parse(pattern)) if isinstance(pattern, str) else None
    except ValueError:
        parts = None
    if parts is None:
        raise damaged(f"{where} is damaged: {pattern!r:.200} is not a pattern of file names.")
    for _, field, form, conversion in parts:
        numbered = re.match(r"(0?[1-9]?d?)?\Z", form or "")
        if field is not None and (field not in fields or conversion or not numbered):
            raise damaged(
                f"{where}={pattern!r:.200} has the field {field!r:.80}; allowed are {', '.join(fields)}, written "
                "such as {chunk_index:03d}."
            )
    check_name("".join(text + ("0" if field is not None else "") for text, field, _, _ in parts), where, DatasetError)
