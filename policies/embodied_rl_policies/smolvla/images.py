"""Image preparation for SmolVLA: undistorted, padded at the left and the top, scaled to [-1, 1]."""

import torch.nn.functional as F
from torch import Tensor


def prepare_images(images: Tensor, size: int) -> Tensor:
    """Convert images: uint8 [n, h, w, 3] → float32 [n, 3, size, size] in [-1, 1]; pad to a square with black.

    The longer side becomes `size` by bilinear interpolation without anti-aliasing, as in lerobot's SmolVLA, which
    places the picture in the lower right corner.
    """
    pixels = images.permute(0, 3, 1, 2).float() / 255
    height, width = pixels.shape[-2:]
    if (height, width) != (size, size):
        ratio = max(height, width) / size
        new = int(height / ratio), int(width / ratio)
        resized = F.interpolate(pixels, size=new, mode="bilinear", align_corners=False)
        pixels = F.pad(resized, (size - new[1], 0, size - new[0], 0))
    return pixels * 2 - 1
