"""Checkpoints in safetensors and JSON, never pickle, that are either complete or absent.

    <folder>/00000120/tensors.safetensors    every tensor of the run
    <folder>/00000120/policy.safetensors     the policy alone, for deployment, if the writer adds it
    <folder>/00000120/state.json             metadata, the checksums of the other files, and its own
    <folder>/last, <folder>/best             one line each: the name of such a folder

A checkpoint is written under a temporary name, flushed to the disk, and then renamed, so that a kill at any moment
leaves the earlier ones unchanged. A damaged one is refused, and the one before it is used.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import explain_errors, set_usual_mode, sync_path, write_text
from embodied_rl.system.untrusted_files import check_inside, check_name, read_json

TENSORS, STATE, POLICY = "tensors.safetensors", "state.json", "policy.safetensors"
_STEP = re.compile(r"\d{8,}$")
_DIGEST = "digest"
"""Key of the SHA-256 of everything else in `state.json`; checkpoints of earlier versions lack it."""
_KEYS = {"step", "sha256", "metadata"}
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80")


class CheckpointError(UserError):
    """A checkpoint cannot be used; the message names the file and the reason."""


def damaged_error(message: str) -> CheckpointError:
    """Return the error for a damaged file."""
    return CheckpointError(message, code="checkpoint-damaged")


def unsupported_error(message: str) -> CheckpointError:
    """Return the error for a checkpoint that the networks here cannot act like."""
    return CheckpointError(message, code="checkpoint-unsupported")


Loaded = tuple[int, dict[str, Tensor], dict[str, Any]]


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor | np.ndarray],
    metadata: Mapping[str, Any],
    keep: int | None = None,
    files: Mapping[str, Callable[[Path], None]] | None = None,
) -> Path:
    """Write checkpoint `step`, point `last` at it, and delete all but the newest `keep` (`best` always stays).

    Later checkpoints, which a resumed run had to refuse, are deleted too: the run will write them again.

    Args:
        folder: the run's `checkpoints/`; created if missing, in a run folder that exists.
        step: iterations done.
        tensors: of any shape and dtype that safetensors supports.
        metadata: anything JSON can hold.
        keep: number of checkpoints to keep; all of them by default.
        files: name → a function that writes this further file; it becomes part of the checkpoint.

    Raises:
        StorageError: the disk is full or the folder cannot be written; earlier checkpoints are untouched.
    """
    final = folder / f"{step:08d}"
    temporary = folder / f".tmp-{final.name}"
    with explain_errors(final):
        folder.mkdir(exist_ok=True)  # fails if the run folder was removed
        _remove_temporary(folder)
        try:
            _write(temporary, step, tensors, metadata, files or {})
            if final.exists():
                final.rename(folder / f".old-{final.name}")
            temporary.rename(final)
            sync_path(folder)
        finally:
            _remove_temporary(folder)
    write_text(folder / "last", final.name + "\n")
    best = folder / "best"
    for refused in (later for later in list_steps(folder) if later > step):
        if best.is_file() and _read_pointer(best) == f"{refused:08d}":
            best.unlink()
        (folder / f"{refused:08d}").rename(folder / f".old-{refused:08d}")
    _remove_temporary(folder)
    if keep is not None:
        prune_checkpoints(folder, keep)
    return final


def load_checkpoint(path: Path) -> Loaded:
    """Read a checkpoint folder, or the one a pointer names; verify its checksums; return step, tensors and metadata.

    Raises:
        CheckpointError: a file is missing, cut short, altered, or not safetensors; the message names it.
        UserError: a file is a link that leads out of the run.
    """
    folder = resolve_checkpoint(path)
    try:
        state = read_state(folder)
        for name, expected in state["sha256"].items():
            _verify(folder / name, expected)
        return state["step"], read_tensors(folder / TENSORS), state["metadata"]
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder} cannot be read: {error.strerror or error}.", code="checkpoint-unreadable"
        ) from error


def load_latest_checkpoint(folder: Path) -> Loaded:
    """Read the newest complete checkpoint; warn of each newer, damaged one.

    Raises:
        CheckpointError: no checkpoint is complete.
    """
    refused: list[str] = []
    for step in reversed(list_steps(folder)):
        try:
            loaded = load_checkpoint(folder / f"{step:08d}")
        except UserError as error:
            refused.append(str(error))
            continue
        for reason in refused:
            warnings.warn(f"Checkpoint refused: {reason} Using step {step} instead.", RuntimeWarning, stacklevel=2)
        return loaded
    reasons = "".join(f"\n  {reason}" for reason in refused)
    remedy = "" if not refused else f"\nRestore one of them from a copy; or remove {folder}, and resume starts again."
    raise CheckpointError(f"No usable checkpoint in {folder}.{reasons}{remedy}", code="checkpoint-none-usable")


def list_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, ascending, whether complete or not."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and _STEP.match(path.name))


def mark_best(folder: Path, step: int) -> None:
    """Point `best` at an existing checkpoint."""
    assert step in list_steps(folder), f"there is no checkpoint {step} in {folder}"
    write_text(folder / "best", f"{step:08d}\n")
    _remove_temporary(folder)


def repair_last(folder: Path, step: int) -> None:
    """Point `last` at the checkpoint that a run continues from, and warn if the pointer was damaged."""
    pointer = folder / "last"
    try:
        named = _read_pointer(pointer) if pointer.is_file() else None
    except CheckpointError as error:
        warnings.warn(f"{error} It names step {step} again.", RuntimeWarning, stacklevel=2)
        named = None
    if named != f"{step:08d}":
        write_text(pointer, f"{step:08d}\n")


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the one `best` points at.

    Raises:
        UserError: `keep` is below 1.
    """
    if keep < 1:
        raise UserError(f"checkpoint.keep must be at least 1, not {keep}.", code="checkpoint-keep-out-of-range")
    best = folder / "best"
    kept = {f"{step:08d}" for step in list_steps(folder)[-keep:]} | ({_read_pointer(best)} if best.is_file() else set())
    for step in list_steps(folder):
        if (name := f"{step:08d}") not in kept:
            (folder / name).rename(folder / f".old-{name}")
    _remove_temporary(folder)


def resolve_checkpoint(path: Path) -> Path:
    """Return the checkpoint folder of a checkpoint folder, a pointer, a `checkpoints/` folder or a run folder.

    The last two resolve to `best`, or else `last`; a run folder with a policy file but no checkpoint itself.

    Raises:
        CheckpointError: there is no checkpoint at the path.
        UserError: the pointer or a file of the checkpoint is a link that leads out of the run.
    """
    if path.name in ("last", "best") and path.is_file():
        return _follow(path)
    if (path / STATE).is_file() or (path / TENSORS).is_file():
        return _check_files(path, _find_run(path))
    for folder in (path, path / "checkpoints"):
        for pointer in (folder / "best", folder / "last"):
            if pointer.is_file():
                return _follow(pointer)
    if (path / POLICY).is_file():
        return _check_files(path, path)
    raise CheckpointError(
        f"No checkpoint at {path}. Give a run folder, a folder in its checkpoints/, last or best.",
        code="checkpoint-missing",
    )


def read_state(folder: Path) -> dict[str, Any]:
    """Read `state.json` of a checkpoint folder: step, sha256 by file, metadata.

    Raises:
        CheckpointError: the file is missing, cut short, altered or incomplete, or belongs to another checkpoint.
    """
    file = folder / STATE
    if not file.is_file():
        raise CheckpointError(f"{file} is missing.", code="checkpoint-file-missing")
    state = read_json(file, CheckpointError)
    if (problem := _find_problem(state)) is not None:
        raise damaged_error(f"{file} is damaged: {problem}.")
    if _STEP.match(folder.name) and state["step"] != int(folder.name):
        raise damaged_error(f"{file} belongs to another checkpoint: its step is {state['step']}.")
    for name in state["sha256"]:
        check_name(name, file, CheckpointError)
    return state


def verify_file(file: Path) -> bool:
    """Compare a file with its SHA-256 in the `state.json` of its folder; return whether there is one.

    Raises:
        CheckpointError: they differ, or `state.json` is damaged; the message names the file.
    """
    if not (file.parent / STATE).is_file():
        return False
    expected = read_state(file.parent)["sha256"].get(file.name)
    if expected is not None:
        _verify(file, expected)
    return expected is not None


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file onto the CPU.

    Raises:
        CheckpointError: the file is missing, not safetensors, or a pickle, which is never loaded: it can run any code.
    """
    if not file.is_file():
        raise CheckpointError(f"There is no file {file}.", code="checkpoint-file-missing")
    try:
        return load_file(file)
    except SafetensorError as error:
        with file.open("rb") as opened:
            pickled = opened.read(4).startswith(_PICKLE_STARTS)
        if pickled:
            message = f"{file} is a pickle, which can run any code when it is opened. Convert it to safetensors first."
            raise CheckpointError(message, code="checkpoint-pickle") from None
        raise damaged_error(f"{file} is damaged, or not a safetensors file: {error}.") from error


@contextmanager
def explain_failed_writes(file: Path) -> Iterator[None]:
    """Convert a failed write of safetensors in the `with` block, which has only a message, to the original OSError.

    Raises:
        OSError: the write failed, for example on a full disk.
    """
    try:
        yield
    except SafetensorError as error:
        if (code := re.search(r"os error (\d+)", str(error))) is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(file)) from error


def _write(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor | np.ndarray],
    metadata: Mapping[str, Any],
    files: Mapping[str, Callable[[Path], None]],
) -> None:
    folder.mkdir()
    file = folder / TENSORS
    with explain_failed_writes(file):
        save_file(separate_tensors(tensors), file)
    _sync(file)
    for name, write in files.items():
        write(folder / name)
        _sync(folder / name)
    sums = {name: _sha256(folder / name) for name in (TENSORS, *files)}
    state = {"step": step, "sha256": sums, "metadata": dict(metadata)}
    write_text(folder / STATE, json.dumps(state | {_DIGEST: _digest(state)}, indent=1) + "\n")


def separate_tensors(tensors: Mapping[str, Tensor | np.ndarray]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors without shared storage, as safetensors requires."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        given = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
        tensor = given.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return separate


def _sync(file: Path) -> None:
    set_usual_mode(file)
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _verify(part: Path, expected: str) -> None:
    if not part.is_file():
        raise CheckpointError(f"{part} is missing.", code="checkpoint-file-missing")
    if (found := _sha256(part)) != expected:
        raise damaged_error(f"{part} is damaged: its SHA-256 is {found[:12]}…, but {STATE} has {expected[:12]}….")


def _digest(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a state after a round trip through JSON, with sorted keys."""
    plain = json.loads(json.dumps(state))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _find_problem(state: Any) -> str | None:
    """Return the problem of the content of a `state.json`, or None."""
    if not isinstance(state, dict) or not state.keys() >= _KEYS:
        return "it lacks step, sha256 or metadata"
    if unknown := sorted(state.keys() - _KEYS - {_DIGEST}):
        return f"it has the unknown entries {', '.join(unknown)}"
    if _DIGEST in state and state[_DIGEST] != _digest({key: state[key] for key in _KEYS}):
        return f"it was changed, for its content has another {_DIGEST}"
    if type(state["step"]) is not int or not isinstance(state["metadata"], dict):
        return "its step is not a whole number, or its metadata not an object"
    sums = state["sha256"]
    if not isinstance(sums, dict) or TENSORS not in sums or not all(isinstance(each, str) for each in sums.values()):
        return f"it lacks a SHA-256 of {TENSORS}"
    return None


def _follow(pointer: Path) -> Path:
    """Return the checkpoint folder that a pointer names."""
    check_inside(run := _find_run(pointer.parent), pointer)
    return _check_files(pointer.parent / _read_pointer(pointer), run)


def _check_files(folder: Path, run: Path) -> Path:
    """Return the folder of a run's checkpoint, of which no file lies outside of the run."""
    for name in (STATE, TENSORS, POLICY):
        check_inside(run, folder / name)
    return folder


def _find_run(path: Path) -> Path:
    """Return the folder of the run whose `checkpoints/` this is, or in whose `checkpoints/` it lies; else `path`."""
    places = (path, *path.parents[:1])
    return next((place.parent for place in places if place.name == "checkpoints"), path)


def _read_pointer(pointer: Path) -> str:
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    if not _STEP.match(name):
        raise CheckpointError(
            f"{pointer} is damaged: it should hold the name of a checkpoint folder, not {name!r}.",
            code="checkpoint-pointer-damaged",
        )
    return name


def _remove_temporary(folder: Path) -> None:
    """Remove the leftovers of an interrupted save or deletion."""
    for leftover in (*folder.glob(".tmp-*"), *folder.glob(".old-*")):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
