"""What a head reads of an observation: small pictures, the robot's state and the words, packed into bytes.

Bytes travel from collectors to learners as they are, are kept for further learning, and can be hashed.

Shapes: n observations, D bytes, F features, P × P pixels.
"""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.scorer import list_scored_cameras
from embodied_rl.interfaces.sim import Array, SimulatorSpec

WORDS = 64
"""Places of the words' hash: each word of the instruction sets one."""
COARSE, LEVELS = 4, 8
"""Pixels of a side, and levels of each colour, of the pictures that are hashed."""


class HeadInputs:
    """Packs the pictures of the scored cameras, the state and the instruction.

    Args:
        spec: of the simulator.
        pixels: P, at most; a smaller picture keeps its size.

    Attributes:
        size: D.
        features: F.
    """

    def __init__(self, spec: SimulatorSpec, pixels: int) -> None:
        scored = list_scored_cameras(spec)
        self._sides = {
            each.name: (min(pixels, each.height), min(pixels, each.width), each.height, each.width)
            for each in spec.cameras
            if each.name in scored
        }
        self._pixels = sum(3 * height * width for height, width, _, _ in self._sides.values())
        self._states = len(spec.state_names)
        self.size = self._pixels + 4 * self._states + WORDS
        self.features = self._pixels + self._states + WORDS

    def pack(self, images: Mapping[str, Array], state: Array, instructions: Sequence[str]) -> Array:
        """Return inputs, uint8 [n, D], of images, camera → uint8 [n, h, w, 3], and states, float32 [n, S]."""
        for name, (_, _, high, wide) in self._sides.items():
            assert images[name].shape[1:3] == (high, wide), f"{name} is {images[name].shape}, not {high} × {wide}"
        small = [_flatten(shrink(images[name], *sides[:2])) for name, sides in self._sides.items()]
        numbers = np.ascontiguousarray(state, "<f4").view(np.uint8)
        words = (
            np.stack([hash_words(text) for text in instructions]) if instructions else np.zeros((0, WORDS), np.uint8)
        )
        return np.concatenate([*small, numbers, words], axis=1)

    def unpack(self, packed: Array) -> Tensor:
        """Return features, float32 [n, F]: colours within ±0.5, states squashed into ±1, words as 0 or 1."""
        pixels, states, words = self._split(packed)
        numbers = np.ascontiguousarray(states).view("<f4").reshape(len(packed), self._states)
        squashed = numbers / (1 + np.abs(numbers))
        whole = np.concatenate([pixels / np.float32(255) - np.float32(0.5), squashed, words], axis=1, dtype=np.float32)
        return torch.from_numpy(whole)

    def coarsen(self, packed: Array) -> Array:
        """Return what is hashed, uint8 [n, C]: pictures of a few pixels and levels, and the words; no state."""
        pixels, _, words = self._split(packed)
        found, first = [], 0
        for height, width, _, _ in self._sides.values():
            size = 3 * height * width
            picture = pixels[:, first : first + size].reshape(-1, height, width, 3)
            coarse = shrink(picture, min(COARSE, height), min(COARSE, width))
            found.append(_flatten(coarse // (256 // LEVELS)))
            first += size
        return np.concatenate([*found, words], axis=1)

    def _split(self, packed: Array) -> list[Array]:
        return np.split(packed, [self._pixels, self.size - WORDS], axis=1)


def shrink(pictures: Array, height: int, width: int) -> Array:
    """Return the means over rectangles of pictures: uint8 [n, h, w, 3] to [n, height, width, 3].

    Sums are products with matrices of 0 and 1. They are exact, in any order, below 2^24: rectangles of 65,000 pixels.
    """
    count, high, wide, _ = pictures.shape
    rows, columns = _assign(high, height), _assign(wide, width)
    summed = np.matmul(rows, pictures.reshape(count, high, wide * 3), dtype=np.float32).reshape(count, height, wide, 3)
    summed = np.matmul(columns, summed)
    return (summed // (rows.sum(1)[:, None] * columns.sum(1))[..., None]).astype(np.uint8)


def _flatten(pictures: Array) -> Array:
    return pictures.reshape(len(pictures), int(np.prod(pictures.shape[1:])))


def _assign(size: int, to: int) -> Array:
    """Return which of `size` places go to which of `to` about equal parts, float32 [to, size] of 0 and 1."""
    return (np.arange(size) * to // size == np.arange(to)[:, None]).astype(np.float32)


def hash_words(text: str) -> Array:
    """Return which of `WORDS` places the words of a text take, uint8 [WORDS] of 0 and 1."""
    found = np.zeros(WORDS, np.uint8)
    found[[zlib.crc32(word.encode()) % WORDS for word in text.lower().split()]] = 1
    return found
