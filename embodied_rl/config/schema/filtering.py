"""The keys by which `collect` and `sft` leave out demonstrations that a scorer takes for bad ones."""

from dataclasses import dataclass

from embodied_rl.config.freeze import at_least


@dataclass(frozen=True)
class FilterNode:
    voc: float | None = at_least(-1.0, None, at_most=1.0)
    """Leave out episodes whose progress is less in order: the rank correlation of progress with time (VLAC). Null
    leaves out none."""
    losses: float | None = at_least(0.0, None, at_most=1.0)
    """Leave out episodes in which a larger share of the steps between judged frames are losses of a hundredth or more
    (VLAC's negative deltas)."""
    end: float | None = at_least(0.0, None, at_most=1.0)
    """Leave out episodes that end with less progress."""
    drop: float | None = at_least(0.0, None, at_most=1.0)
    """Leave out what lets progress fall by more than this within a chunk (GR-RL): sft leaves out the rows that such a
    chunk begins with, collect whole episodes."""
    every: int = at_least(1, 2)
    """Control steps between judged frames; the first and the last are always judged."""

    @property
    def rules(self) -> dict[str, float]:
        """Return the thresholds that are set."""
        named = {"voc": self.voc, "losses": self.losses, "end": self.end, "drop": self.drop}
        return {name: value for name, value in named.items() if value is not None}
