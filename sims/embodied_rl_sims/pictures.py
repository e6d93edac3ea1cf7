"""Resize pictures. NumPy only."""

import numpy as np

from embodied_rl.interfaces.sim import Array


def resize_picture(picture: Array, height: int, width: int) -> Array:
    """Resize `picture`, uint8 [h, w, 3], to uint8 [height, width, 3]: each pixel is the mean of the area it covers."""
    if picture.shape[:2] == (height, width):
        return picture
    rows, columns = _shares(picture.shape[0], height), _shares(picture.shape[1], width)
    mean = np.einsum("ah,hwc,bw->abc", rows, picture.astype(np.float64), columns, optimize=True)
    return np.rint(mean).astype(np.uint8)


def _shares(old: int, new: int) -> Array:
    """Compute the share of each new pixel that each old pixel covers, float64 [new, old]; rows sum to 1."""
    edges = np.linspace(0, old, new + 1)
    first, last, pixel = edges[:-1, None], edges[1:, None], np.arange(old)
    covered = np.clip(np.minimum(last, pixel + 1) - np.maximum(first, pixel), 0, None)
    return covered / covered.sum(axis=1, keepdims=True)
