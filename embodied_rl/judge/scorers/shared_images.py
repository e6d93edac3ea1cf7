"""Pictures that several requests show: held in memory once, and hashed once."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from embodied_rl.interfaces.sim import Array


@dataclass(frozen=True, eq=False)
class Picture:
    """Picture, uint8 [h, w, 3]; its pixels are read-only by convention."""

    pixels: Array

    @cached_property
    def digest(self) -> bytes:
        """Return a hash of shape and pixels."""
        return hashlib.sha256(repr(self.pixels.shape).encode() + self.pixels.tobytes()).digest()


class SharedImages(Mapping[str, Array]):
    """Camera → a picture as uint8 [h, w, 3], or several as [n, h, w, 3], which are copied together at each access.

    Args:
        pictures: camera → one picture, or several.

    Attributes:
        pictures: the same.
    """

    def __init__(self, pictures: Mapping[str, Picture | tuple[Picture, ...]]) -> None:
        self.pictures = pictures

    def __getitem__(self, camera: str) -> Array:
        found = self.pictures[camera]
        return found.pixels if isinstance(found, Picture) else np.stack([each.pixels for each in found])

    def __iter__(self) -> Iterator[str]:
        return iter(self.pictures)

    def __len__(self) -> int:
        return len(self.pictures)


def list_pictures(shown: Mapping[str, Array]) -> dict[str, Sequence[Picture]]:
    """Return camera → pictures, of arrays [h, w, 3] or [n, h, w, 3]; shared pictures are the same objects."""
    if isinstance(shown, SharedImages):
        return {name: (each,) if isinstance(each, Picture) else each for name, each in shown.pictures.items()}
    stacks = {name: array[None] if array.ndim == 3 else array for name, array in shown.items()}
    return {name: [Picture(each) for each in stack] for name, stack in stacks.items()}
