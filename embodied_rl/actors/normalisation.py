"""Between a robot's units and the numbers a network was trained on: an affine map, entry by entry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from embodied_rl.interfaces.errors import UserError

KINDS = ("identity", "mean_std", "quantiles", "min_max", "limits")
SMALLEST_STD = 1e-4
LARGEST_PAD = 1e-5
"""Largest centre and scale of what only fills a vector up: openpi adds 1e-6 to a spread of nothing."""
Bounds = Sequence[float] | NDArray[Any]


@dataclass(frozen=True)
class Normalisation:
    """normalised = (value - center) / scale.

    Attributes:
        kind: what center and scale are made of: mean and standard deviation; the 1 % and 99 % quantiles, or minimum
            and maximum, which become -1 and 1; the simulator's limits; or "identity", nothing.
        center, scale: of each entry.
    """

    kind: str
    center: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse what could only fail later.

        Raises:
            UserError: an unknown kind, statistics of two lengths, without spread, or not finite.
        """
        if self.kind not in KINDS:
            raise UserError(f"Statistics of kind {self.kind!r} are unknown; known: {', '.join(KINDS)}.")
        if len(self.center) != len(self.scale):
            raise UserError(f"Statistics of {len(self.center)} centres and {len(self.scale)} scales do not fit.")
        if not np.isfinite([*self.center, *self.scale]).all() or min((*self.scale, 1.0)) <= 0:
            raise UserError("Statistics must be finite, and every scale positive.")

    def __len__(self) -> int:
        return len(self.center)

    @staticmethod
    def identity(entries: int) -> "Normalisation":
        """Units are kept."""
        return Normalisation("identity", (0.0,) * entries, (1.0,) * entries)

    @staticmethod
    def from_bounds(
        kind: str, low: Sequence[float] | NDArray[Any], high: Sequence[float] | NDArray[Any]
    ) -> "Normalisation":
        """`low` becomes -1 and `high` 1."""
        bottom, top = np.asarray(low, np.float64), np.asarray(high, np.float64)
        return Normalisation(kind, _floats((bottom + top) / 2), _floats((top - bottom) / 2))

    @staticmethod
    def from_values(values: NDArray[Any], kind: str = "mean_std") -> "Normalisation":
        """Statistics of each column of [m, entries]; one that never moves gets scale 1, so that it stays readable."""
        if kind == "quantiles":
            low, high = np.quantile(values.astype(np.float64), (0.01, 0.99), axis=0)
            still = high - low < SMALLEST_STD
            return Normalisation.from_bounds(kind, np.where(still, low - 1, low), np.where(still, high + 1, high))
        mean, std = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
        return Normalisation("mean_std", _floats(mean), _floats(np.where(std < SMALLEST_STD, 1.0, std)))

    def unpadded(self, entries: int) -> "Normalisation":
        """The first entries, where the others only fill up, as openpi's may; the same otherwise."""
        beyond = self.center[entries:] + self.scale[entries:]
        if not beyond or max(map(abs, beyond)) > LARGEST_PAD:
            return self
        return Normalisation(self.kind, self.center[:entries], self.scale[:entries])

    def normalise(self, values: Tensor) -> Tensor:
        """Values [..., entries] in the robot's units → float32, the network's numbers.

        In double precision, since the scale of an entry that never moved is smaller than float32 tells values apart.
        """
        wide = values.double()
        return ((wide - wide.new_tensor(self.center)) / wide.new_tensor(self.scale)).float()

    def restore(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """The inverse of `normalise`, for arrays [..., entries]."""
        return (values * np.array(self.scale, np.float32) + np.array(self.center, np.float32)).astype(np.float32)


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))
