"""Weights and inputs that two projects can make alike without exchanging a file: every value is a function of its name.

Runs in the environment of either project, so it imports NumPy alone.
"""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def generator(name: str) -> np.random.Generator:
    """Random numbers that belong to a name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def weight(name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """A tensor of weights: matrices keep the scale of what they multiply, vectors are small but never zero."""
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    scale = fan_in**-0.5 if len(shape) > 1 else 0.1
    return (generator(name).standard_normal(tuple(shape)) * scale).astype(np.float32)


def weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.float32]]:
    """A whole network's weights, by the names the checkpoint format gives them."""
    return {name: weight(name, shape) for name, shape in shapes.items()}


def normal(name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """Standard normal values, such as the noise a chunk is denoised from."""
    return generator(name).standard_normal(tuple(shape)).astype(np.float32)


def picture(name: str, rows: int, height: int, width: int) -> NDArray[np.uint8]:
    """Smooth colours and a little grain, uint8 [rows, height, width, 3]: resizing must not turn them into grey."""
    rng = generator(name)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    waves = rng.uniform(1, 4, (rows, 1, 1, 3)) * (x + y * 0.7)[None, :, :, None] + rng.uniform(0, 6, (rows, 1, 1, 3))
    grain = rng.uniform(-20, 20, (rows, height, width, 3))
    return np.clip(127.5 + 100 * np.sin(waves) + grain, 0, 255).astype(np.uint8)


def words(name: str, rows: int, length: int, vocabulary: int, shortest: int = 2) -> NDArray[np.int64]:
    """Token ids int64 [rows, length], 0 where padded: the first row is full, the others are shorter."""
    rng = generator(name)
    ids = rng.integers(2, vocabulary, (rows, length))
    lengths = rng.integers(shortest, length, rows)
    lengths[0] = length
    return np.where(np.arange(length) < lengths[:, None], ids, 0).astype(np.int64)
