"""Pictures of a request: data URLs, decoded within limits. Nothing is downloaded."""

import base64
import binascii
import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

from embodied_rl.interfaces.sim import Array
from embodied_rl.serving.refusal import Refusal, quote

FORMATS = ("PNG", "JPEG", "WEBP")
MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
"""Accepted Pillow modes: 8 bits per channel; an alpha channel is dropped."""

_DAMAGED = (OSError, SyntaxError, ValueError, TypeError, IndexError, OverflowError, EOFError, struct.error, zlib.error)
"""Exceptions of Pillow for a damaged file."""


def decode_picture(url: str, where: str, pixels: int, reserve: Callable[[int], None]) -> Array:
    """Decode a picture of a request to RGB, uint8 [h, w, 3].

    Args:
        url: `data:image/…;base64,…`.
        where: the field, for messages.
        pixels: maximum number of pixels; checked before decoding.
        reserve: called with the bytes of the decoded picture before it is decoded; it may raise.

    Raises:
        Refusal: not a data URL, or not a picture within the limits.
    """
    head, comma, data = url.partition(",")
    if not head.startswith("data:"):
        raise Refusal(400, f"{where} is {quote(url)}: send pictures as data URLs; this server fetches nothing.", where)
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise Refusal(400, f"{where}: a picture begins with data:image/png;base64, (or jpeg, webp).", where)
    try:
        file = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: letters that are not ASCII
        raise Refusal(400, f"{where} is not base64: {error}.", where) from None
    return decode_file(file, where, pixels, reserve)


def decode_file(
    file: bytes, where: str, pixels: int, reserve: Callable[[int], None], formats: tuple[str, ...] = FORMATS
) -> Array:
    """Decode the bytes of an image file; see `decode_picture`."""
    try:
        with Image.open(io.BytesIO(file), formats=formats) as opened:
            if opened.width * opened.height > pixels:
                size = f"{opened.width} × {opened.height}"
                raise Refusal(413, f"{where} has {size} pixels, and may have {pixels}: send a smaller one.", where)
            if opened.mode not in MODES:
                raise Refusal(400, f"{where} has pixels of the kind {opened.mode}; send 8-bit RGB or grey.", where)
            if getattr(opened, "n_frames", 1) != 1:
                raise Refusal(400, f"{where} is an animation; send one picture.", where)
            reserve(3 * opened.width * opened.height)
            return np.asarray(opened.convert("RGB"))
    except Image.DecompressionBombError:
        raise Refusal(413, f"{where} has far more pixels than {pixels}: send a smaller one.", where) from None
    except _DAMAGED as error:
        said = type(error).__name__ if isinstance(error, Image.UnidentifiedImageError) else quote(str(error))
        raise Refusal(400, f"{where} is not a PNG, JPEG or WebP picture: {said}.", where) from None
