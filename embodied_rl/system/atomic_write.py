"""Atomic writes of files, with errors that name the setting that chose the path.

Functions with an argument `key`, the setting, raise `StorageError` on a full disk, a missing folder or a refused write.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from embodied_rl.interfaces.errors import UserError

TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files."""

_MADE: ContextVar[list[Path] | None] = ContextVar("made", default=None)
"""The list of `note_new_folders`, while one is kept."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_GONE = {errno.ENOENT, errno.ESTALE}
_REFUSED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG,
}  # fmt: skip


class StorageError(UserError):
    """A path from the configuration cannot be written."""


@contextmanager
def explain_errors(path: Path, key: str = "run.root") -> Iterator[None]:
    """Turn these causes of an OSError into `StorageError` in a context; any other OSError passes unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            message = f"The disk is full: could not write {path}. Free some space, or set {key} to another disk."
            raise StorageError(message, code="disk-full") from error
        if error.errno in _GONE:
            message = (
                f"Cannot write {path}: it, or its folder, is gone. Was it removed, moved or unmounted? Restore it and "
                f"continue, or set {key} to a permanent folder."
            )
            raise StorageError(message, code="path-gone") from error
        if error.errno in _REFUSED:
            message = f"Cannot write {path} ({error.strerror}). Set {key} to a folder you may write to."
            raise StorageError(message, code="path-not-writable") from error
        raise


def sync_path(path: Path) -> None:
    """Sync the content of a file, or the renames inside of a folder, to disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, key: str) -> Path:
    """Make a folder for results, with its parents, and return its path."""
    with explain_errors(path, key):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def replace_file(path: Path, key: str = "run.root") -> Iterator[Path]:
    """Yield a temporary path to write, and rename it to `path` when the block ends without an error."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")  # no reader looks for such a suffix
    with explain_errors(path, key):
        temporary.unlink(missing_ok=True)  # a folder from someone else could hold a link to any file
        try:
            yield temporary
            settle_file(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def set_usual_mode(file: Path) -> None:
    """Set the permissions of a new file by the user's umask; safetensors gives them only to the owner."""
    probe = file.with_name(f"{TEMPORARY}mode-{file.name}-{os.getpid()}")
    probe.unlink(missing_ok=True)
    try:
        probe.touch()
        file.chmod(stat.S_IMODE(probe.stat().st_mode))
    finally:
        probe.unlink(missing_ok=True)


def settle_file(temporary: Path, path: Path) -> None:
    """Sync a written file, rename it to `path` and sync the folder: content and name survive a power cut."""
    set_usual_mode(temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_path(path.parent)


def write_text(path: Path, text: str, key: str = "run.root") -> None:
    """Write `text` to `path` atomically: a reader, or a resuming run, sees the old text or the new one.

    Halves of letters, as of names of files that are not UTF-8, are escaped.
    """
    with replace_file(path, key) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def check_writable(path: Path, key: str) -> None:
    """Check that a file can be written, and make its folder; raise `StorageError` if the file cannot be written."""
    make_folder(path.parent, key)
    with explain_errors(path, key), path.open("ab"):
        pass
    if not path.stat().st_size:
        path.unlink()


def check_folder(path: str, key: str, names_folder: bool = True) -> None:
    """Check, without creating anything, that a path is given and that its folder can be created and written.

    Args:
        names_folder: whether the path is a folder; otherwise it is a file in one.
    """
    if not path.strip():
        raise UserError(f"{key}= is empty: give a path, or leave {key} out.", code="path-empty")
    folder = path if names_folder else str(Path(path).absolute().parent)
    absolute = Path(folder).expanduser().absolute()
    existing = next(parent for parent in (absolute, *absolute.parents) if parent.exists())
    if not existing.is_dir():
        raise UserError(
            f"{key}={folder}: {existing} is a file, not a folder. Choose another, such as {key}=runs.",
            code="folder-is-a-file",
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            f"{key}={folder}: {existing} cannot be written. Choose another, such as {key}=/tmp/runs.",
            code="folder-not-writable",
        )


@contextmanager
def note_new_folders() -> Iterator[list[Path]]:
    """Yield a list that gets each folder of a run or an evaluation that this process makes."""
    made: list[Path] = []
    token = _MADE.set(made)
    try:
        yield made
    finally:
        _MADE.reset(token)


def note_folder(path: Path) -> Path:
    """Add a folder of a run or an evaluation to the list of `note_new_folders`, if one is kept; return the folder."""
    made = _MADE.get()
    if made is not None:
        made.append(path)
    return path
