"""Pictures of a request: data URLs, decoded within limits. Nothing is ever fetched."""

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
"""Pixels of 8 bits; transparency is left out."""

_DAMAGED = (OSError, SyntaxError, ValueError, TypeError, IndexError, OverflowError, EOFError, struct.error, zlib.error)
"""What Pillow raises for a file that is not what it says."""


def decode_picture(url: str, where: str, pixels: int, reserve: Callable[[int], None]) -> Array:
    """Decode a picture of a request.

    Args:
        url: `data:image/…;base64,…`.
        where: the field, for messages.
        pixels: most pixels; looked at before anything is decoded.
        reserve: called with the bytes of the decoded picture before it is decoded; it may raise.

    Returns:
        uint8 [h, w, 3], RGB.

    Raises:
        Refusal: the URL is no data URL, or does not hold a picture within the limits.
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
    """Decode the bytes of a picture's file; see `decode_picture`.

    Raises:
        Refusal: they are no picture in one of the formats, or one beyond the limits.
    """
    try:
        with Image.open(io.BytesIO(file), formats=formats) as opened:
            _check_size(opened, where, pixels)
            reserve(3 * opened.width * opened.height)
            return np.asarray(opened.convert("RGB"))
    except Image.DecompressionBombError:
        raise Refusal(413, f"{where} has far more pixels than {pixels}: send a smaller one.", where) from None
    except _DAMAGED as error:
        said = type(error).__name__ if isinstance(error, Image.UnidentifiedImageError) else quote(str(error))
        raise Refusal(400, f"{where} is no picture in PNG, JPEG or WebP: {said}.", where) from None


def _check_size(opened: Image.Image, where: str, pixels: int) -> None:
    if opened.width * opened.height > pixels:
        size = f"{opened.width} × {opened.height}"
        raise Refusal(413, f"{where} has {size} pixels, and may have {pixels}: send a smaller one.", where)
    if opened.mode not in MODES:
        raise Refusal(400, f"{where} has pixels of the kind {opened.mode}; send 8-bit RGB or grey.", where)
    if getattr(opened, "n_frames", 1) != 1:
        raise Refusal(400, f"{where} is an animation; send one picture.", where)
