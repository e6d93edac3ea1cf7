"""Pictures that several requests show: held in memory once, hashed once, and encoded once."""

import base64
import hashlib
import io
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from PIL import Image

from embodied_rl.interfaces.sim import Array

KEPT_BYTES = 64 << 20
"""Of encoded pictures that are kept, since an episode's pictures come with many of its requests."""
JPEG_QUALITY = 90

Fit = Literal["keep", "stretch"]
"""keep: the ratio of a picture's sides; stretch: to a square, as some models were trained."""


@dataclass(frozen=True, eq=False)
class Picture:
    """Picture, uint8 [h, w, 3]; its pixels are read-only by convention."""

    pixels: Array

    @cached_property
    def digest(self) -> bytes:
        """Return a hash of shape and pixels."""
        return hashlib.sha256(repr(self.pixels.shape).encode() + self.pixels.tobytes()).digest()


class SharedImages(Mapping[str, Array]):
    """Camera → a picture as uint8 [h, w, 3], or several as [n, h, w, 3], which are copied together at each access."""

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


class ImageEncoder:
    """Encodes pictures as JPEG with `size` pixels on the longer side, or as PNG.

    Equal pictures give equal texts, which servers can cache.
    """

    def __init__(self, size: int, fit: Fit = "keep") -> None:
        self._size, self._fit = size, fit
        self._encoded: OrderedDict[tuple[bytes, bool], str] = OrderedDict()
        self._bytes = 0

    def encode(self, picture: Picture, lossless: bool = False) -> str:
        """Return a picture as a data URL; one without loss as it is, in PNG."""
        key = picture.digest, lossless
        if key not in self._encoded:
            drawn, buffer = Image.fromarray(np.ascontiguousarray(picture.pixels)), io.BytesIO()
            if lossless:
                kind = "png"
                drawn.save(buffer, "PNG", compress_level=1, compress_type=zlib.Z_RLE)  # sooner, a tenth longer
            else:
                kind, factor = "jpeg", self._size / max(drawn.size)
                width, height = (
                    max(1, round(side * factor)) if self._fit == "keep" else self._size for side in drawn.size
                )
                drawn = drawn.resize((width, height), Image.Resampling.BICUBIC)
                drawn.save(buffer, "JPEG", quality=JPEG_QUALITY)
            self._encoded[key] = f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
            self._bytes += len(self._encoded[key])
        self._encoded.move_to_end(key)
        while self._bytes > KEPT_BYTES and len(self._encoded) > 1:
            self._bytes -= len(self._encoded.popitem(last=False)[1])
        return self._encoded[key]
