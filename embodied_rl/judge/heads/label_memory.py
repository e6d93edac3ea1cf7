"""The labels that are kept: each observation once, the newest up to a number; and those that no head learns from.

Shapes: n labels, D bytes of an input.
"""

import zlib
from collections.abc import Mapping

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.base import Labels

_COLUMNS = ("inputs", "value", "episode", "decision")


class LabelMemory:
    """Keeps the newest labels. What comes twice counts once: the first answer about an observation stays.

    Args:
        most: labels that are kept.
        size: D.

    Attributes:
        kept: the labels, oldest first.
        duplicates: labels that came again, since the run began.
    """

    def __init__(self, most: int, size: int) -> None:
        self._most = most
        none = np.zeros(0, np.int64)
        self.kept = Labels(np.zeros((0, size), np.uint8), np.zeros(0), none, none)
        self._known: set[tuple[int, int]] = set()
        self.duplicates = 0

    def add(self, labels: Labels) -> Labels:
        """Add labels, and return those that were new."""
        new: list[int] = []
        for place, name in enumerate(_name(labels)):
            if name in self._known:
                self.duplicates += 1
            else:
                self._known.add(name)
                new.append(place)
        fresh = labels.select(np.array(new, np.int64))
        both = Labels.join([self.kept, fresh])
        self.kept = both.select(np.arange(max(0, len(both) - self._most), len(both)))
        self._known = set(_name(self.kept))
        return fresh

    def state(self) -> dict[str, Array]:
        """Return copies of all arrays."""
        columns = {name: getattr(self.kept, name).copy() for name in _COLUMNS}
        return columns | {"duplicates": np.array(self.duplicates)}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        self.kept = Labels(*(state[name].copy() for name in _COLUMNS))
        self._known, self.duplicates = set(_name(self.kept)), int(state["duplicates"])


def _name(labels: Labels) -> list[tuple[int, int]]:
    return list(zip(labels.episode.tolist(), labels.decision.tolist(), strict=True))


def hold_out(episode: Array, share: float) -> Array:
    """Return which episodes no head may learn from, bool [n]: about `share` of all, the same ones in each run."""
    drawn = [zlib.crc32(str(number).encode()) / 2**32 for number in episode.tolist()]
    return np.array(drawn, np.float64) < share
