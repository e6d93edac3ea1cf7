"""Images for OpenVLA, as the evaluation of OpenVLA and OpenVLA-OFT on LIBERO prepares them.

An image becomes a square by Lanczos interpolation with anti-aliasing, then its centre is cut out and enlarged
bilinearly; after each step it is rounded to 8 bits. The official evaluation also compresses images of another size by
JPEG once, which is not done here: render `resolution` pixels a side, and neither happens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

LOBES = 3
"""of the Lanczos kernel."""


def prepare_images(images: Tensor, size: int, crop_area: float) -> Tensor:
    """Convert images uint8 [n, h, w, 3] to colours in [0, 1], float32 [n, 3, size, size].

    Computed in double precision, which no autocast shortens.
    """
    pixels = images.permute(0, 3, 1, 2).double()
    height, width = pixels.shape[-2:]
    if (height, width) != (size, size):
        rows, columns = (_lanczos(length, size, images.device) for length in (height, width))
        pixels = (rows @ pixels @ columns.T).round().clamp(0, 255)
    if crop_area < 1:
        cut = _crop(size, crop_area, images.device)
        colours = (cut @ (pixels / 255) @ cut.T).clamp(0, 1)
        pixels = (colours * 255.5).floor().clamp(0, 255)  # as tf.image.convert_image_dtype rounds
    return (pixels / 255).float()


def normalise_colours(colours: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (colours - mean) / std of float32 [n, 3, r, r], where mean and std have an entry for each colour."""
    center, scale = (colours.new_tensor(values)[:, None, None] for values in (mean, std))
    return (colours - center) / scale


def _lanczos(length: int, size: int, device: torch.device) -> Tensor:
    """Return the weights [size, length] of a resize; shrinking widens the kernel (anti-aliasing)."""
    ratio = length / size
    widened = max(ratio, 1.0)
    centres = (torch.arange(size, dtype=torch.float64, device=device) + 0.5) * ratio
    places = torch.arange(length, dtype=torch.float64, device=device) + 0.5
    distance = (places - centres[:, None]) / widened
    weights = torch.where(distance.abs() < LOBES, torch.sinc(distance) * torch.sinc(distance / LOBES), 0)
    return weights / weights.sum(dim=1, keepdim=True)


def _crop(size: int, area: float, device: torch.device) -> Tensor:
    """Return the weights [size, size] that enlarge the centre: √area of each side, corner pixels onto corner pixels."""
    side = area**0.5
    fraction = torch.linspace((1 - side) / 2, (1 + side) / 2, size, dtype=torch.float64, device=device)
    places = fraction * (size - 1)
    pixels = torch.arange(size, dtype=torch.float64, device=device)
    return (1 - (places[:, None] - pixels).abs()).clamp_min(0)
