"""Pictures as CLIP and SigLIP want them, after a checkpoint's `preprocessor_config.json`, without torchvision."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.system.untrusted_files import read_json

FILE = "preprocessor_config.json"
_READ = ("size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor")
_SWITCHES = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb")
_NAMES = ("image_processor_type", "feature_extractor_type", "processor_class", "data_format", "_processor_class")
"""Settings that change no picture."""
LARGEST_SIDE = 4096
"""Pixels that a folder may ask for."""


@dataclass(frozen=True)
class PictureSettings:
    """What is done with a picture, in this order.

    Attributes:
        shortest: pixels of the shorter side after resizing; or None, and `size` is (height, width).
        size: see there; None for no resizing.
        resample: PIL's number of the filter.
        crop: (height, width) that is cut out of the middle; None cuts nothing.
        rescale: values are multiplied by it.
        mean, std: of each colour, for (x - mean) / std.
    """

    shortest: int | None
    size: tuple[int, int] | None
    resample: int
    crop: tuple[int, int] | None
    rescale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_settings(folder: Path) -> PictureSettings:
    """Return the settings of a checkpoint's folder.

    Raises:
        UserError: there are none, or one is unknown; the message names file and key.
    """
    try:
        keys = read_json(folder / FILE)
    except UserError as error:
        raise UserError(f"reward.path: {error}", code=error.code) from None
    known = (*_READ, *_SWITCHES, *_NAMES)
    if not isinstance(keys, dict):
        raise UserError(f"reward.path: {folder / FILE} holds no keys.", code="preprocessor-invalid")
    for key, value in keys.items():
        if key not in known and value is not None:
            raise UserError(
                f"reward.path: {folder / FILE}: unknown setting '{key}'.{suggest_name(key, known)}",
                code="preprocessor-invalid",
            )
    try:
        settings = _make_settings(keys)
        _check_settings(settings)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"reward.path: {folder / FILE} lacks a setting, or it is not a number: {error}", code="preprocessor-invalid"
        ) from None
    return settings


def _make_settings(keys: Mapping[str, Any]) -> PictureSettings:
    def on(name: str, default: bool) -> bool:
        value = keys.get(name)
        if value not in (None, True, False):
            raise ValueError(f"{name} is neither true nor false")
        return default if value is None else bool(value)

    size = keys.get("size") if on("do_resize", default=True) else None
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size
    normalize = on("do_normalize", default=True)
    return PictureSettings(
        shortest=None if shortest is None else int(shortest),
        size=_read_size(size) if isinstance(size, dict) and shortest is None else None,
        resample=int(keys.get("resample", Image.Resampling.BICUBIC)),
        crop=_read_size(keys["crop_size"]) if on("do_center_crop", default="crop_size" in keys) else None,
        rescale=float(keys.get("rescale_factor", 1 / 255)) if on("do_rescale", default=True) else 1.0,
        mean=_read_colours(keys["image_mean"]) if normalize else (0.0, 0.0, 0.0),
        std=_read_colours(keys["image_std"]) if normalize else (1.0, 1.0, 1.0),
    )


def _check_settings(settings: PictureSettings) -> None:
    """Raise ValueError where a picture would have no pixels or too many of them, or its colours would not be finite."""
    sides = [settings.shortest, *(settings.size or ()), *(settings.crop or ())]
    if any(side is not None and not 1 <= side <= LARGEST_SIDE for side in sides):
        raise ValueError(f"a picture has 1 to {LARGEST_SIDE} pixels a side")
    if not all(map(math.isfinite, (settings.rescale, *settings.mean, *settings.std))) or min(settings.std) <= 0:
        raise ValueError("a number is not finite, or one of image_std is not above 0")
    Image.Resampling(settings.resample)


def _read_size(size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    return int(size), int(size)


def _read_colours(channels: Sequence[Any]) -> tuple[float, ...]:
    values = tuple(float(each) for each in channels)
    if len(values) != 3:
        raise ValueError(f"{len(values)} numbers for 3 colours")
    return values


def prepare_pictures(pictures: Sequence[Array], settings: PictureSettings) -> Tensor:
    """Return pictures, uint8 [h, w, 3] each, as float32 [n, 3, h, w]."""
    drawn = np.stack([_resize(picture, settings) for picture in pictures]).astype(np.float32) * settings.rescale
    mean, std = (np.asarray(each, np.float32) for each in (settings.mean, settings.std))
    scaled = (drawn - mean) / std
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32))


def _resize(picture: Array, settings: PictureSettings) -> Array:
    drawn = Image.fromarray(np.ascontiguousarray(picture))
    height, width = settings.size or (drawn.height, drawn.width)
    if settings.shortest is not None:
        short, long = sorted((drawn.height, drawn.width))
        sides = settings.shortest, int(settings.shortest * long / short)
        height, width = sides if drawn.height <= drawn.width else sides[::-1]
    if (drawn.height, drawn.width) != (height, width):
        drawn = drawn.resize((width, height), Image.Resampling(settings.resample))
    return np.asarray(drawn) if settings.crop is None else _crop(np.asarray(drawn), *settings.crop)


def _crop(picture: Array, height: int, width: int) -> Array:
    """Return the middle of a picture, with black around where the picture is too small."""
    short = [max(0, wanted - side) for wanted, side in zip((height, width), picture.shape[:2], strict=True)]
    padded = np.pad(picture, (*(((each + 1) // 2, each // 2) for each in short), (0, 0)))
    top, left = (padded.shape[0] - height) // 2, (padded.shape[1] - width) // 2
    return padded[top : top + height, left : left + width]
