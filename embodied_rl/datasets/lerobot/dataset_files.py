"""Files of a dataset that appear whole or not at all, and one writer at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embodied_rl.datasets.lerobot.info import DatasetError, FilePlace
from embodied_rl.runs import atomic_write
from embodied_rl.runs.atomic_write import TEMPORARY, make_folder

KEY = "the dataset's folder"
"""What the user sets to another path, in errors."""


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """See `storage.replace_file`; makes the folder, too."""
    make_folder(path.parent, KEY)
    with atomic_write.replace_file(path, KEY) as temporary:
        yield temporary


def settle_file(temporary: Path, path: Path) -> None:
    """See `storage.settle_file`; makes the folder, too."""
    make_folder(path.parent, KEY)
    atomic_write.settle_file(temporary, path)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Alone with the folder; the lock ends with the process, however it ends.

    Raises:
        DatasetError: another process writes to it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(
                f"{folder}: another writer has this dataset open. Give each process a folder of its own."
            ) from None
        yield
    finally:
        os.close(descriptor)


def remove_beyond(folder: Path, last: FilePlace | None, suffix: str) -> None:
    """Remove what a writer that was killed left in a folder of chunks: unfinished files, and files after `last`."""
    for path in folder.glob(f"chunk-*/{TEMPORARY}*"):
        path.unlink()
    for path in folder.glob(f"chunk-*/file-*{suffix}"):
        place = FilePlace(int(path.parent.name.removeprefix("chunk-")), int(path.stem.removeprefix("file-")))
        if last is None or place > last:
            path.unlink()
