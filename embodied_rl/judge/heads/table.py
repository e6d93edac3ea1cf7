"""A head that remembers: hash of a coarse observation → mean of its scores (the retrieval of ONI, arXiv:2410.23022).

ONI's table maps captions to labels, and an unknown caption is worth 0 until its label has come. Here an unknown
observation has no prediction, so that the last potential of its episode is held.
"""

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.base import HeadOptions, Labels

_BYTES = 16
"""Of a hash."""


class HashHead:
    """Counts scores by the hash of `HeadInputs.coarsen`. The entry that was learned least recently is dropped first.

    Args:
        options: with the number of entries.
    """

    calibrated = True

    def __init__(self, options: HeadOptions) -> None:
        self._inputs, self._most = options.inputs, options.entries
        self._table: dict[bytes, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def predict(self, inputs: Array) -> Array:
        """Return the mean score of what is known, and NaN elsewhere; see `Head`."""
        found = (self._table.get(key, (math.nan, 1)) for key in self._hash(inputs))
        return np.array([total / count for total, count in found], np.float64)

    def learn(self, fresh: Labels, kept: Labels, version: int) -> float:
        """Add the fresh labels to the table; see `Head`."""
        for key, value in zip(self._hash(fresh.inputs), fresh.value.tolist(), strict=True):
            total, count = self._table.pop(key, (0.0, 0))
            self._table[key] = (total + value, count + 1)
        while len(self._table) > self._most:
            del self._table[next(iter(self._table))]
        return math.nan

    def _hash(self, inputs: Array) -> list[bytes]:
        return [hashlib.blake2b(row.tobytes(), digest_size=_BYTES).digest() for row in self._inputs.coarsen(inputs)]

    def state(self) -> dict[str, Array]:
        """Return the entries in the order in which they were learned."""
        keys = np.frombuffer(b"".join(self._table), np.uint8).reshape(-1, _BYTES).copy()
        sums = np.array([total for total, _ in self._table.values()], np.float64)
        return {"keys": keys, "sums": sums, "counts": np.array([count for _, count in self._table.values()], np.int64)}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        values = zip(state["sums"].tolist(), state["counts"].tolist(), strict=True)
        self._table = dict(zip((row.tobytes() for row in state["keys"]), values, strict=True))
