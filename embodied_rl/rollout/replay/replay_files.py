"""Folder of a replay storage: one .npy file per field, mapped into memory, and the texts that rows refer to.

    <folder>/format.json            `ReplayFormat`
    <folder>/texts.jsonl            one text a line, as JSON; only ever appended to
    <folder>/<field>.npy            [tracks, slots, ...]; "images/top" is images.top.npy

The folder appears complete, in one step. Its space is reserved then, because a full disk would otherwise kill the
process without a message at some later write to mapped memory.
"""

import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.replay.format import REMEDY, ReplayError, ReplayFormat
from embodied_rl.system.atomic_write import explain_errors, sync_path, write_text
from embodied_rl.system.untrusted_files import DAMAGED_ARRAY, check_ends, shorten

FORMAT, TEXTS = "format.json", "texts.jsonl"
DATASET = "meta/info.json"
"""A file of every LeRobotDataset."""


def is_dataset(folder: Path) -> bool:
    """Return whether a folder holds a LeRobotDataset."""
    return (folder / DATASET).is_file()


class Texts:
    """A numbered list of texts, in the order in which they were added; in a file unless `path` is None.

    Only one process may `write` to a file.

    Raises:
        ReplayError: the file is missing or damaged, or another process writes to it. StorageError: the disk is full.
    """

    def __init__(self, path: Path | None = None, write: bool = True):
        if path is not None:
            check_ends(path, ReplayError)
        self._file: IO[bytes] | None = _locked(path) if path is not None and write else None
        self._texts: list[str] = []
        if path is not None:
            try:
                whole = path.read_bytes().rpartition(b"\n")  # the rest is a line that a process did not finish
                self._texts = [json.loads(line) for line in whole[0].splitlines()]
                json.dumps(self._texts, ensure_ascii=False).encode()  # raises UnicodeEncodeError
            except (OSError, ValueError, RecursionError) as error:
                self.close()
                message = f"{path} is missing or damaged ({error}). {REMEDY}"
                raise ReplayError(message, code="replay-damaged") from error
            if not all(isinstance(text, str) for text in self._texts):
                self.close()
                raise ReplayError(f"{path} holds a line that is no text. {REMEDY}", code="replay-damaged")
            if self._file is not None:
                self._file.truncate(len(whole[0]) + len(whole[1]))
        self._numbers = {text: number for number, text in enumerate(self._texts)}

    def __getitem__(self, number: int) -> str:
        return self._texts[number]

    def __len__(self) -> int:
        return len(self._texts)

    def number(self, text: str) -> int:
        """Return the number of a text; add a new text first, on disk before any row can refer to it."""
        if text not in self._numbers:
            if self._file is not None:
                line = json.dumps(text).encode() + b"\n"
                with explain_errors(Path(self._file.name), "the replay storage"):
                    while line:  # a disk that becomes full takes a part, and then raises
                        line = line[self._file.write(line) :]
            self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return self._numbers[text]

    def close(self) -> None:
        """Close the file, so that another process can write."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _locked(path: Path) -> IO[bytes]:
    """Open a file for appending by one process at a time; the lock ends with the process, however it ends."""
    with explain_errors(path, "the replay storage"):
        file = path.open("ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ReplayError(
            f"{path.parent}: another process writes to this replay storage. Give each process its own folder, or "
            f"read it with ReplayStorage.open.",
            code="replay-locked",
        ) from None
    return file


def check_not_written(folder: Path) -> None:
    """Raise `ReplayError` while a process writes to a storage, which must not be read then."""
    check_ends(path := folder / TEXTS, ReplayError)
    with suppress(OSError), path.open("rb") as file:  # `Texts` says what is wrong
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{folder}: a process writes to this replay storage. Wait for its end, or stop it."
            raise ReplayError(message, code="replay-locked") from None


def read_format(folder: Path) -> ReplayFormat:
    """Read the format of a folder; raise `ReplayError` if this version cannot read it as a replay storage."""
    check_ends(folder / FORMAT, ReplayError)
    try:
        text = (folder / FORMAT).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ReplayError(f"{folder} holds no replay storage ({error}). {REMEDY}", code="replay-missing") from error
    return ReplayFormat.from_json(text, str(folder / FORMAT))


def make_file_name(field: str) -> str:
    """Return the name of the file that holds a field's array."""
    return field.replace("/", ".") + ".npy"


def check_new(folder: Path) -> None:
    """Raise `ReplayError` if a folder is not empty, or is the working directory, which a storage would replace."""
    if (folder.is_dir() and any(folder.iterdir())) or folder.absolute() == Path.cwd():
        message = f"out={folder} is not empty, or is the working directory. Give a new folder for the replay storage."
        raise ReplayError(message, code="output-exists")


def make_folder(folder: Path, layout: ReplayFormat) -> None:
    """Create an empty replay storage unless the folder is one; raise `ReplayError` if that has another format.

    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """
    if folder.exists() and any(folder.iterdir()):
        return read_format(folder).check(layout, str(folder))
    temporary = folder.with_name(f".tmp-{folder.name}")
    with explain_errors(folder, "the replay storage"):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            for name, field in layout.fields.items():
                path = temporary / make_file_name(name)
                np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(field.dtype), shape=layout.shape(name))
                with path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
            (temporary / TEXTS).touch()
            write_text(temporary / FORMAT, layout.to_json())
            temporary.rename(folder)
            sync_path(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def sync_files(folder: Path, layout: ReplayFormat) -> None:
    """Sync all rows and texts to disk, whichever process wrote them; raise `StorageError` if the folder is gone."""
    for name in (TEXTS, *map(make_file_name, layout.fields)):
        with explain_errors(folder / name, "the replay storage"):
            sync_path(folder / name)


def open_arrays(folder: Path, layout: ReplayFormat, write: bool) -> dict[str, Array]:
    """Map the arrays into memory, by field; raise `ReplayError` if one is missing or has another shape."""
    arrays: dict[str, Array] = {}
    for name, field in layout.fields.items():
        path, shape = folder / make_file_name(name), layout.shape(name)
        check_ends(path, ReplayError)
        try:
            array = np.load(path, mmap_mode="r")  # mapping for writing would lengthen a truncated file
        except (*DAMAGED_ARRAY, EOFError) as error:
            message = f"{path} is missing or damaged ({shorten(error)}). {REMEDY}"
            raise ReplayError(message, code="replay-damaged") from error
        if not isinstance(array, np.memmap):
            raise ReplayError(f"{path} is no .npy file. {REMEDY}", code="replay-damaged")
        if (array.shape, array.dtype.str) != (shape, field.dtype):
            raise ReplayError(
                f"{path} holds {array.dtype.str} {list(array.shape)}, and {FORMAT} describes {field.dtype} "
                f"{list(shape)}. {REMEDY}",
                code="replay-damaged",
            )
        arrays[name] = np.load(path, mmap_mode="r+") if write else array
    return arrays
