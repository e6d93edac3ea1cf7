"""Pictures as data URLs, encoded once."""

import base64
import io
import zlib
from collections import OrderedDict
from typing import Literal

import numpy as np
from PIL import Image

from embodied_rl.judge.scorers.shared_images import Picture

KEPT_BYTES = 64 << 20
"""Of encoded pictures that are kept, since an episode's pictures come with many of its requests."""
JPEG_QUALITY = 90

Fit = Literal["keep", "stretch"]
"""keep: the ratio of a picture's sides; stretch: to a square, as some models were trained."""


class ImageEncoder:
    """Encodes pictures as JPEG, or as PNG; equal pictures give equal texts, which servers can keep.

    Args:
        size: pixels of the longer side.
        fit: what becomes of the ratio of the sides.
    """

    def __init__(self, size: int, fit: Fit = "keep") -> None:
        self._size, self._fit = size, fit
        self._encoded: OrderedDict[tuple[bytes, bool], str] = OrderedDict()
        self._bytes = 0

    def encode(self, picture: Picture, lossless: bool = False) -> str:
        """Return a picture as a data URL; one without loss as it is, in PNG."""
        key = picture.digest, lossless
        if key not in self._encoded:
            self._encoded[key] = self._copy(picture) if lossless else self._draw(picture)
            self._bytes += len(self._encoded[key])
        self._encoded.move_to_end(key)
        while self._bytes > KEPT_BYTES and len(self._encoded) > 1:
            self._bytes -= len(self._encoded.popitem(last=False)[1])
        return self._encoded[key]

    def _draw(self, picture: Picture) -> str:
        drawn = Image.fromarray(np.ascontiguousarray(picture.pixels))
        factor = self._size / max(drawn.size)
        sides = [max(1, round(side * factor)) if self._fit == "keep" else self._size for side in drawn.size]
        with io.BytesIO() as buffer:
            drawn.resize((sides[0], sides[1]), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=JPEG_QUALITY)
            return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()

    def _copy(self, picture: Picture) -> str:
        with io.BytesIO() as buffer:
            drawn = Image.fromarray(np.ascontiguousarray(picture.pixels))
            drawn.save(buffer, "PNG", compress_level=1, compress_type=zlib.Z_RLE)  # sooner, a tenth longer
            return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
