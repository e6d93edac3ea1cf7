"""Image preparation for PaliGemma: undistorted, padded to a square, scaled to [-1, 1], on the network's device."""

import torch.nn.functional as F
from torch import Tensor


def prepare_images(images: Tensor, size: int) -> Tensor:
    """Convert images: uint8 [n, h, w, 3] → float32 [n, 3, size, size] in [-1, 1]; pad to a square with black.

    The longer side becomes `size` by bilinear interpolation without anti-aliasing, as in lerobot; openpi's data loader
    uses Pillow, which applies anti-aliasing when it shrinks an image.
    """
    pixels = images.permute(0, 3, 1, 2).float() / 255
    height, width = pixels.shape[-2:]
    if (height, width) != (size, size):
        pixels = _resize_with_pad(pixels, height, width, size)
    return pixels * 2 - 1


def _resize_with_pad(pixels: Tensor, height: int, width: int, size: int) -> Tensor:
    ratio = max(height, width) / size
    new = int(height / ratio), int(width / ratio)
    resized = F.interpolate(pixels, size=new, mode="bilinear", align_corners=False)
    top, left = (size - new[0]) // 2, (size - new[1]) // 2
    return F.pad(resized, (left, size - new[1] - left, top, size - new[0] - top))
