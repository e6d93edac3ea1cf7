"""Counter-based noise: a pure function of (run seed, episode, decision, stream, position).

A row's noise does not depend on other rows, the batch, the worker or earlier draws. The generator is
Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), vectorised over rows and blocks.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
ROUNDS = 10
LOW_32 = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
STREAM_SHIFT = np.uint64(28)
MAX_DECISION = 1 << 28


class NoiseStream(IntEnum):
    """The independent random sequences of one decision."""

    INITIAL = 0
    STEP = 1
    INJECTED = 2


class Keys(Protocol):
    """The keys that determine noise; `interfaces.policy.NoiseKeys` implements this."""

    @property
    def seed(self) -> int: ...
    @property
    def episode(self) -> NDArray[Any]: ...
    @property
    def decision(self) -> NDArray[Any]: ...


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Compute the Philox4x32-10 random function: `counter` uint64 [4, m] → four random words uint64 [4, m] for each.

    All words, also the two of `key`, are below 2**32.
    """
    even, odd = counter[0::2], counter[1::2]
    round_keys = (np.array(key, np.uint64) + np.arange(ROUNDS, dtype=np.uint64)[:, None] * KEY_STEPS) & LOW_32
    for round_key in round_keys[:, :, None]:
        product = (even * MULTIPLIERS)[::-1]
        even = (product >> HALF) ^ odd ^ round_key
        odd = product & LOW_32
    return np.stack([even[0], odd[0], even[1], odd[1]])


def draw_words(keys: Keys, counts: Mapping[NoiseStream, int]) -> dict[NoiseStream, NDArray[np.uint64]]:
    """Draw the first `counts[stream]` 32-bit words of each stream, all in one pass.

    Returns:
        stream → uint64 [n, count], each below 2**32. A smaller count gives a prefix of a larger one.

    Raises:
        ValueError: the seed does not fit into 64 bits, or a decision counter is outside [0, 2**28).
    """
    episode = np.asarray(keys.episode, np.int64).view(np.uint64)
    decision = np.asarray(keys.decision, np.int64)
    if not 0 <= keys.seed < 1 << 64:
        raise ValueError(f"seed {keys.seed} must lie in [0, 2**64)")
    if len(decision) and not (decision.min() >= 0 and decision.max() < MAX_DECISION):
        raise ValueError(f"decision counters must lie in [0, 2**28), got {decision.min()} to {decision.max()}")
    sizes = [-(-count // 4) for count in counts.values()]
    stream = np.repeat(np.array(list(counts), np.uint64), sizes)
    counter = np.empty((4, len(episode), len(stream)), np.uint64)
    counter[0] = np.concatenate([np.arange(size, dtype=np.uint64) for size in sizes])
    counter[1] = decision.view(np.uint64)[:, None] | (stream << STREAM_SHIFT)
    counter[2] = (episode & LOW_32)[:, None]
    counter[3] = (episode >> HALF)[:, None]
    words = philox(counter.reshape(4, -1), (keys.seed & 0xFFFFFFFF, keys.seed >> 32))
    words = np.moveaxis(words.reshape(counter.shape), 0, -1).reshape(len(episode), 4 * len(stream))
    starts = np.cumsum([0, *sizes])[:-1] * 4
    return {name: words[:, start : start + counts[name]] for name, start in zip(counts, starts, strict=True)}


def as_uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert 32-bit words to float64 in [0, 1), on a grid of 2**-32."""
    return words.astype(np.float64) * 2.0**-32


def as_normal(words: NDArray[np.uint64]) -> Tensor:
    """Convert 32-bit words to float32 standard normals of the same shape, by the inverse distribution function."""
    centred = torch.from_numpy(np.ascontiguousarray((words + 0.5) * 2.0**-32))
    return torch.special.ndtri(centred).float()


def as_choice(words: NDArray[np.uint64], weights: Tensor) -> Tensor:
    """Convert 32-bit words to int64 indices of the same shape, drawn in proportion to `weights` [K]."""
    cumulative = np.cumsum(weights.double().numpy())
    return torch.from_numpy(np.searchsorted(cumulative, as_uniform(words) * cumulative[-1], side="right"))


def draw_normal(keys: Keys, stream: NoiseStream, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normals, float32 [n, *shape], on the host."""
    words = draw_words(keys, {stream: int(np.prod(shape))})[stream]
    return as_normal(words).reshape(len(words), *shape)
