"""Normalisation between a robot's units and those of a network: an affine map of each entry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from embodied_rl.interfaces.errors import UserError

KINDS = ("identity", "mean_std", "quantiles", "quantile10", "min_max", "limits")
SMALLEST_STD = 1e-4
LARGEST_PAD = 1e-5
"""Largest centre and scale of padding entries: openpi adds 1e-6 to a spread of 0."""


@dataclass(frozen=True)
class Normalisation:
    """An affine map of each entry: normalised = (value - center) / scale.

    Attributes:
        kind: statistics behind center and scale: mean and standard deviation; the 1 % and 99 % quantiles, the
            10 % and 90 % quantiles, or minimum and maximum, which become -1 and 1; the simulator's limits; or
            "identity", none.
        center, scale: of each entry.
    """

    kind: str
    center: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the statistics, so that errors appear at construction and not later.

        Raises:
            UserError: the kind is unknown, or the statistics differ in length, have no spread, or are not finite.
        """
        if self.kind not in KINDS:
            raise UserError(
                f"Statistics of kind {self.kind!r} are unknown; known: {', '.join(KINDS)}.", code="statistics-invalid"
            )
        if len(self.center) != len(self.scale):
            raise UserError(
                f"Statistics of {len(self.center)} centres and {len(self.scale)} scales do not fit.",
                code="statistics-invalid",
            )
        if not np.isfinite([*self.center, *self.scale]).all() or min((*self.scale, 1.0)) <= 0:
            raise UserError("Statistics must be finite, and every scale positive.", code="statistics-invalid")

    def __len__(self) -> int:
        return len(self.center)

    @staticmethod
    def identity(entries: int) -> "Normalisation":
        """Return a normalisation that keeps all units."""
        return Normalisation("identity", (0.0,) * entries, (1.0,) * entries)

    @staticmethod
    def from_bounds(
        kind: str, low: Sequence[float] | NDArray[Any], high: Sequence[float] | NDArray[Any]
    ) -> "Normalisation":
        """Return a normalisation that maps `low` to -1 and `high` to 1."""
        bottom, top = np.asarray(low, np.float64), np.asarray(high, np.float64)
        return Normalisation(kind, _floats((bottom + top) / 2), _floats((top - bottom) / 2))

    @staticmethod
    def from_values(values: NDArray[Any], kind: str = "mean_std") -> "Normalisation":
        """Compute statistics of each column of [m, entries]; a constant column gets scale 1 to stay readable."""
        if kind == "quantiles":
            low, high = np.quantile(values.astype(np.float64), (0.01, 0.99), axis=0)
            still = high - low < SMALLEST_STD
            return Normalisation.from_bounds(kind, np.where(still, low - 1, low), np.where(still, high + 1, high))
        mean, std = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
        return Normalisation("mean_std", _floats(mean), _floats(np.where(std < SMALLEST_STD, 1.0, std)))

    def unpadded(self, entries: int) -> "Normalisation":
        """Return the first entries if the others are only padding, as openpi's may be; else return it unchanged."""
        beyond = self.center[entries:] + self.scale[entries:]
        if not beyond or max(map(abs, beyond)) > LARGEST_PAD:
            return self
        return Normalisation(self.kind, self.center[:entries], self.scale[:entries])

    def normalise(self, values: Tensor) -> Tensor:
        """Convert values [..., entries] in the robot's units to the network's numbers, float32.

        It computes in double precision: the scale of a constant entry can be below the resolution of float32.
        """
        wide = values.double()
        return ((wide - wide.new_tensor(self.center)) / wide.new_tensor(self.scale)).float()

    def restore(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Convert arrays [..., entries] back to the robot's units: the inverse of `normalise`."""
        return (values * np.array(self.scale, np.float32) + np.array(self.center, np.float32)).astype(np.float32)


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))
