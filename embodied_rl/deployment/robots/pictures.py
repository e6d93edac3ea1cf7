"""Conversion of image messages to the policy's pictures, uint8 RGB [height, width, 3]."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from embodied_rl.deployment.robots.description import CameraEntry
from embodied_rl.deployment.robots.fields import UnusableMessageError

Picture = NDArray[np.uint8]

ENCODINGS = {"rgb8": ("RGB", 3), "bgr8": ("BGR", 3), "rgba8": ("RGBX", 4), "bgra8": ("BGRX", 4), "mono8": ("L", 1)}
"""Supported encodings of sensor_msgs/msg/Image: pillow's layout, and bytes per pixel."""
LARGEST_SIDE = 8192
"""Largest width and height that is decoded."""
FORMATS = {"jpeg": "JPEG", "jpg": "JPEG", "png": "PNG"}
_RESAMPLING = {"area": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR}


def read_picture(message: Any, camera: CameraEntry, info: Any = None) -> Picture:
    """Return the picture of an Image or CompressedImage in the policy's size, uint8 RGB [height, width, 3].

    Raises:
        UnusableMessageError: unsupported encoding, wrong number of bytes, or a size that is not that of `info`.
    """
    if hasattr(message, "format"):
        image = _decode(message, camera.name)[0]
    else:
        layout, _ = _check_pixels(message, camera.name)
        mode = "L" if layout == "L" else "RGB"
        data = np.ascontiguousarray(message.data, np.uint8)
        # Not `frombuffer`, which keeps the four channels of RGBX and shares the memory of the message.
        image = Image.frombytes(mode, (message.width, message.height), data.data, "raw", layout, message.step)
        image = image if mode == "RGB" else image.convert("RGB")
    box = _choose_box(image.size, camera, info)
    if (image.height, image.width) == (camera.height, camera.width):
        return np.array(image)
    if camera.resize != "nearest":
        return np.array(image.resize((camera.width, camera.height), _RESAMPLING[camera.resize], box=box))
    image = image.crop(box)  # type: ignore[arg-type]
    # from edge to edge, as rosetta does (iblnkn/rosetta)
    rows = np.round(np.linspace(0, image.height - 1, camera.height)).astype(int)
    columns = np.round(np.linspace(0, image.width - 1, camera.width)).astype(int)
    return np.ascontiguousarray(np.asarray(image)[rows][:, columns])


def check_picture(message: Any, camera: CameraEntry, info: Any = None) -> None:
    """Check a picture as `read_picture`, without converting its pixels; a JPEG is decoded as a small draft."""
    if hasattr(message, "format"):
        size = _decode(message, camera.name, draft=True)[1]
    else:
        _check_pixels(message, camera.name)
        size = message.width, message.height
    _choose_box(size, camera, info)


def _check_pixels(message: Any, name: str) -> tuple[str, int]:
    """Return pillow's layout of an Image, and the bytes per pixel."""
    known = ENCODINGS.get(message.encoding)
    if known is None:
        raise UnusableMessageError(
            f"camera {name}: encoding {message.encoding[:40]!r} is not supported: let the driver send "
            f"{', '.join(ENCODINGS)}."
        )
    height, width, step = message.height, message.width, message.step
    if not (height and width) or step < width * known[1] or len(message.data) != height * step:
        raise UnusableMessageError(
            f"camera {name}: {len(message.data)} bytes in rows of {step} are not a picture of {width}×{height} "
            f"pixels in {message.encoding}."
        )
    if max(height, width) > LARGEST_SIDE:
        raise _refuse_size(name, width, height)
    return known


def _decode(message: Any, name: str, *, draft: bool = False) -> tuple[Image.Image, tuple[int, int]]:
    """Return a CompressedImage's picture, or with `draft` a small one of a JPEG, and its full width and height."""
    words = message.format.lower().replace(";", " ").split()
    known = [FORMATS[word] for word in words if word in FORMATS]
    if not known or any("depth" in word for word in words):
        raise UnusableMessageError(
            f"camera {name}: format {message.format[:40]!r} is not supported: let the driver send jpeg or png."
        )
    try:
        image = Image.open(io.BytesIO(np.asarray(message.data, np.uint8).tobytes()), formats=known[:1])
        size = image.size
        if draft and max(size) <= LARGEST_SIDE:
            image.draft("L", (1, 1))
            image.load()
        if max(size) <= LARGEST_SIDE:
            return image if draft else image.convert("RGB"), size
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise UnusableMessageError(f"camera {name}: its bytes are not a {known[0]}: {error}") from None
    raise _refuse_size(name, *size)


def _refuse_size(name: str, width: int, height: int) -> UnusableMessageError:
    return UnusableMessageError(f"camera {name}: {width}×{height} pixels are too many to decode.")


def _choose_box(size: tuple[int, int], camera: CameraEntry, info: Any) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of the used part of a picture of this width and height."""
    width, height = size
    if info is not None and (height, width) != (info.height, info.width):
        raise UnusableMessageError(
            f"camera {camera.name}: its picture has {width}×{height} pixels, and its CameraInfo has "
            f"{info.width}×{info.height}: they belong to different cameras or settings."
        )
    box = (0.0, 0.0, float(width), float(height))
    if (height, width) == (camera.height, camera.width):
        return box
    problem = (
        f"camera {camera.name}: its picture has {width}×{height} pixels, and cameras.{camera.name} has "
        f"{camera.width}×{camera.height}"
    )
    if camera.resize == "none":
        raise UnusableMessageError(f"{problem}: set the camera's size, or set resize, such as resize: area.")
    if width * camera.height != height * camera.width:
        if camera.fit == "same":
            raise UnusableMessageError(f"{problem}, of another aspect ratio: set fit: crop or stretch, as in the data.")
        if camera.fit == "crop":
            ratio = camera.width / camera.height  # of the largest central part
            kept_width, kept_height = min(float(width), height * ratio), min(float(height), width / ratio)
            left, top = (width - kept_width) / 2, (height - kept_height) / 2
            return left, top, left + kept_width, top + kept_height
    return box
