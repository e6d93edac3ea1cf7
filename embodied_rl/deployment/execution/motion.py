"""Interface of the motions of the modes RETURN and REPLAY; their targets pass the safety filter.

Shapes: `A` action entries.
"""

from dataclasses import dataclass
from typing import Protocol

from numpy.typing import NDArray

from embodied_rl.deployment.execution.tick import Mode


@dataclass(frozen=True)
class MotionStep:
    """One tick of a motion.

    Attributes:
        wanted: float64 [A], the target, as `Tick.proposed`: speeds for velocities and displacements, positions
            otherwise. None: ramp to rest.
        done: the motion is finished; the robot holds.
        failed: why the motion was aborted; empty otherwise.
    """

    wanted: NDArray | None
    done: bool = False
    failed: str = ""


class Motion(Protocol):
    """A motion. It starts when the operator asks for its mode with the dead man's switch held.

    Attributes:
        mode: RETURN or REPLAY. words: description of the motion, for the operator.
    """

    mode: Mode
    words: str

    def begin(self, measured: NDArray, commanded: NDArray, now_s: float) -> str:
        """Start at the present position; return why that is refused, empty if it is not.

        Args:
            measured: float64 [A] in q, NaN for entries that are not measured. commanded: float64 [A], the last command.
            now_s: by the core's clock.
        """
        ...

    def step(self, measured: NDArray, now_s: float) -> MotionStep:
        """Return the present step; not called again after a step that is done or failed."""
        ...
