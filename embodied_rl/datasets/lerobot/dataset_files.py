"""Atomic replacement of a dataset's files, and the lock of its folder for one writer."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embodied_rl.datasets.lerobot.info import DatasetError, FilePlace
from embodied_rl.system import atomic_write
from embodied_rl.system.atomic_write import TEMPORARY, make_folder

KEY = "the dataset's folder"
"""Name of the setting to change, in errors."""


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Replace a file as `atomic_write.replace_file` does, after creating its folder; yield the temporary path."""
    make_folder(path.parent, KEY)
    with atomic_write.replace_file(path, KEY) as temporary:
        yield temporary


def settle_file(temporary: Path, path: Path) -> None:
    """Move a file as `atomic_write.settle_file` does, after creating the target's folder."""
    make_folder(path.parent, KEY)
    atomic_write.settle_file(temporary, path)


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
