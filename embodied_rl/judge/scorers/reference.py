"""A reference trajectory: pictures of how the task is done, which some prompts show a model."""

import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.system.untrusted_files import DAMAGED_ARRAY, shorten

PICTURES = (".png", ".jpg", ".jpeg")
MOST_REFERENCES = 64
"""Frames of a reference, at most."""
UNREADABLE = (*DAMAGED_ARRAY, EOFError, KeyError, zlib.error, zipfile.BadZipFile)
"""What reading a damaged archive of arrays may raise."""
LARGEST_ENTRY = 2_000_000_000
"""Bytes of the pictures of a camera, at most."""


def load_reference(path: Path, cameras: Sequence[str], count: int) -> dict[str, Array]:
    """Return at most `count` evenly spaced frames of a trajectory, with the first and the last.

    Args:
        path: an episode's `.npz` file as `embodied-rl collect` writes it; or a folder with a folder of pictures for
            each camera, or, for one camera, of pictures. Pictures are in the order of their names.
        cameras: required cameras.
        count: number of frames; fewer if the trajectory is shorter.

    Returns:
        camera → uint8 [n, h, w, 3].

    Raises:
        UserError: the trajectory does not exist, lacks a camera, or has fewer than two frames.
    """
    if not 2 <= count <= MOST_REFERENCES:
        raise UserError(f"reward.references={count} must be within 2 … {MOST_REFERENCES}.", code="value-out-of-range")
    frames = _read_folder(path, cameras, count) if path.is_dir() else _read_npz(path, cameras, count)
    lengths = {name: len(each) for name, each in frames.items()}
    if len(set(lengths.values())) > 1 or min(lengths.values()) < 2:
        raise UserError(
            f"reward.reference={path}: each camera needs equally many frames, two at least: {lengths}.",
            code="reference-cameras-differ",
        )
    return frames


def choose_evenly(length: int, count: int) -> list[int]:
    """Return at most `count` indices within 0 … length - 1, evenly, the first and the last included."""
    if count < 2 or length < 2:
        return [length - 1] if length else []
    return sorted({round(index * (length - 1) / (min(count, length) - 1)) for index in range(min(count, length))})


def _read_npz(path: Path, cameras: Sequence[str], count: int) -> dict[str, Array]:
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"reward.reference={path} is neither an episode file (.npz) nor a folder.", code="reference-missing"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.startswith("images/")]
            known = [name.removeprefix("images/") for name in names]
            if missing := [name for name in cameras if name not in known]:
                raise UserError(
                    f"reward.reference={path} has no images of camera '{missing[0]}', but of: {', '.join(known)}.",
                    code="camera-missing",
                )
            found = {name: _read_frames(archive, f"images/{name}.npy") for name in cameras}
    except UserError:  # a ValueError
        raise
    except UNREADABLE as error:
        raise UserError(
            f"reward.reference={path} is not an episode file: {shorten(error)}", code="reference-damaged"
        ) from None
    return {name: each[choose_evenly(len(each), count)] for name, each in found.items()}


def _read_frames(archive: zipfile.ZipFile, entry: str) -> Array:
    """Return an array of pictures; its header is checked against the entry's size before it is read."""
    size = archive.getinfo(entry).file_size
    if size > LARGEST_ENTRY:
        raise ValueError(f"{entry} has {size} bytes, more than {LARGEST_ENTRY}")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read_header(file)
        if dtype != np.uint8 or by_columns or len(shape) != 4 or shape[3] != 3 or min(shape) < 1:
            raise ValueError(f"{entry} is {dtype} {shape}, not uint8 [n, h, w, 3]")
        if math.prod(shape) != size - file.tell():
            raise ValueError(f"{entry} holds {size - file.tell()} bytes, not the {math.prod(shape)} of {shape}")
        return np.frombuffer(file.read(), np.uint8).reshape(shape)


def _read_folder(path: Path, cameras: Sequence[str], count: int) -> dict[str, Array]:
    folders = {name: path / name for name in cameras}
    if len(cameras) == 1 and not folders[cameras[0]].is_dir():
        folders = {cameras[0]: path}
    found: dict[str, Array] = {}
    for name, folder in folders.items():
        if not folder.is_dir():
            raise UserError(
                f"reward.reference={path} has no folder '{name}' with pictures of that camera.", code="camera-missing"
            )
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURES)
        if not files:
            raise UserError(
                f"reward.reference: {folder} holds no pictures: {', '.join(PICTURES)}.", code="reference-empty"
            )
        frames = [_read_picture(files[index]) for index in choose_evenly(len(files), count)]
        if len({frame.shape for frame in frames}) > 1:
            raise UserError(f"reward.reference: the pictures in {folder} differ in size.", code="image-size-mismatch")
        found[name] = np.stack(frames)
    return found


def _read_picture(file: Path) -> Array:
    try:
        with Image.open(file, formats=("PNG", "JPEG")) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise UserError(f"reward.reference: {file} is not a picture: {error}", code="image-invalid") from None
