"""The pictures that GR00T N1.7 sees, prepared as the processors of Isaac-GR00T and lerobot do for evaluation.

A picture is optionally padded to a square, resized, cut to its centre, and resized again; `resize` says by which of
three methods: "area" is OpenCV's INTER_AREA (albumentations), "bilinear" and "bicubic" are torchvision's with
anti-aliasing. Qwen3-VL's processor then rounds its sides to whole merged patches. Pixels stay uint8 until they become
patches in [-1, 1].
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BITS = 11
"""Fractional bits of the weights of OpenCV's fixed-point interpolation."""


def find_size(height: int, width: int, config: Any) -> tuple[int, int]:
    """Return the (height, width) that pictures of a size have when they become patches."""
    tall, wide = prepare_pictures(torch.zeros(1, height, width, 3, dtype=torch.uint8, device="cpu"), config).shape[2:]
    return tall, wide


def prepare_pictures(images: Tensor, config: Any) -> Tensor:
    """Convert pictures uint8 [m, h, w, 3] to uint8 [m, 3, h', w'], sides in whole merged patches."""
    pixels = images.permute(0, 3, 1, 2)
    height, width = pixels.shape[2:]
    if config.letter_box and height != width:
        across, down = max(height - width, 0), max(width - height, 0)
        pixels = F.pad(pixels, [across // 2, across - across // 2, down // 2, down - down // 2])
    pixels = resize(pixels, _find_target(pixels, config), config.resize)
    pixels = _cut_centre(pixels, config)
    pixels = resize(pixels, _find_target(pixels, config, last=True), config.resize)
    return resize(pixels, round_size(pixels.shape[2], pixels.shape[3], config), "bicubic")


def make_patches(pixels: Tensor, patch: int, merge: int) -> Tensor:
    """Convert pictures uint8 [m, 3, h, w] to patches float32 [m, N, 3 · 2 · patch²] in [-1, 1], merged ones together.

    A single picture fills both frames of Qwen3-VL's patch, as in transformers' Qwen2VLImageProcessor.
    """
    scaled = (pixels.float() - 127.5) / 127.5
    blocks = scaled.unflatten(2, (-1, merge, patch)).unflatten(5, (-1, merge, patch))
    ordered = blocks.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None]
    return ordered.expand(*[-1] * 6, 2, -1, -1).flatten(5).flatten(1, 4)


def round_size(height: int, width: int, config: Any) -> tuple[int, int]:
    """Return the nearest size in whole merged patches of `least_pixels` to `most_pixels` (as Qwen2-VL does)."""
    unit = config.patch * config.merge
    tall, wide = (round(side / unit) * unit for side in (height, width))
    if tall * wide > config.most_pixels:
        shrink = (height * width / config.most_pixels) ** 0.5
        tall, wide = (max(unit, int(side / shrink // unit) * unit) for side in (height, width))
    elif tall * wide < config.least_pixels:
        grow = (config.least_pixels / (height * width)) ** 0.5
        tall, wide = (-int(-(side * grow) // unit) * unit for side in (height, width))
    return tall, wide


def _find_target(pixels: Tensor, config: Any, *, last: bool = False) -> tuple[int, int]:
    """Return the size of a resize before or after the cut; see the keys of `config`."""
    height, width = pixels.shape[2:]
    target, edge = (config.target_height, config.target_width), config.shortest_edge
    if config.resize == "area" and (edge or config.keep_aspect):
        factor = (edge or target[0]) / min(height, width)
        return max(1, round(height * factor)), max(1, round(width * factor))
    if config.resize == "bicubic" and not last:
        return (edge or target[0],) * 2
    return target


def _cut_centre(pixels: Tensor, config: Any) -> Tensor:
    height, width = pixels.shape[2:]
    if config.resize == "bilinear":
        tall, wide = config.cut_height, config.cut_width
        top, left = (round((size - cut) / 2) for size, cut in ((height, tall), (width, wide)))
    else:
        whole = round if config.resize == "bicubic" else int
        fraction = config.cut_fraction if 0 < config.cut_fraction < 1 else 1.0
        tall, wide = (max(1, int(whole(side * fraction))) for side in (height, width))
        top, left = (height - tall) // 2, (width - wide) // 2
    return pixels[:, :, top : top + tall, left : left + wide]


def resize(pixels: Tensor, size: tuple[int, int], method: str) -> Tensor:
    """Resize pictures uint8 [m, 3, h, w] by a method of the module's docstring; the same size is kept to the bit."""
    height, width = pixels.shape[2:]
    if (height, width) == size:
        return pixels
    if method != "area":
        on_host = pixels.device.type == "cpu"
        given = pixels if on_host else pixels.float()  # torch's kernel for uint8 is the host's
        new = F.interpolate(given, size=size, mode=method, align_corners=False, antialias=True)
        return new if on_host else new.round().clamp(0, 255).to(torch.uint8)
    if size[0] <= height and size[1] <= width:
        return _average(pixels, size)
    return _interpolate(pixels, size)


def _average(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Shrink by averages over areas, as OpenCV does: halves round up where both sides are halved, else to even."""
    height, width = pixels.shape[2:]
    if (height, width) == (2 * size[0], 2 * size[1]):
        blocks = pixels.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).int().sum(dim=(3, 5))
        return ((blocks + 2) >> 2).to(torch.uint8)
    down, across = (_weigh_areas(*pair).to(pixels.device) for pair in ((height, size[0]), (width, size[1])))
    return (down @ (pixels.float() @ across.T)).round().clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=16)
def _weigh_areas(old: int, new: int) -> Tensor:
    """Return the weights float32 [new, old] of old pixels in the averages that become new ones."""
    scale, weights = old / new, np.zeros((new, old), np.float32)
    for index in range(new):
        low, high = index * scale, index * scale + scale
        first, last, cell = int(np.ceil(low)), min(int(np.floor(high)), old - 1), min(scale, old - low)
        first = min(first, last)
        if first - low > 1e-3:
            weights[index, first - 1] = (first - low) / cell
        weights[index, first:last] = 1 / cell
        if high - last > 1e-3:
            weights[index, last] = min(high - last, 1.0, cell) / cell
    return torch.from_numpy(weights)


def _interpolate(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Enlarge as OpenCV's INTER_AREA does, which interpolates linearly in fixed point."""
    (top, down), (left, across) = (_weigh_pair(*pair) for pair in zip(pixels.shape[2:], size, strict=True))
    top, down, left, across = (value.to(pixels.device) for value in (top, down, left, across))
    whole, last = pixels.int(), pixels.shape[3] - 1
    rows = whole[..., left] * across[0] + whole[..., (left + 1).clamp_max(last)] * across[1]
    bottom = (top + 1).clamp_max(pixels.shape[2] - 1)
    upper, lower = (rows[:, :, index] >> 4 for index in (top, bottom))
    mixed = ((upper * down[0][:, None]) >> 16) + ((lower * down[1][:, None]) >> 16)
    return ((mixed + 2) >> 2).clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=16)
def _weigh_pair(old: int, new: int) -> tuple[Tensor, Tensor]:
    """Return for each new pixel the first of two old ones int64 [new], and the weights of both int32 [2, new]."""
    index = np.arange(new)
    first = np.floor(index * (old / new)).astype(np.int64)
    second = ((index + 1) - (first + 1) * (new / old)).astype(np.float32)
    second = np.where(second <= 0, np.float32(0), second - np.floor(second))
    second = np.where(first >= old - 1, np.float32(0), second)
    weights = np.rint(np.stack([1 - second, second]) * (1 << BITS)).astype(np.int32)
    return torch.from_numpy(np.minimum(first, old - 1)), torch.from_numpy(weights)
