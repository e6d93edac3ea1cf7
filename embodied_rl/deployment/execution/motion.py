"""What a robot does by itself in the modes RETURN and REPLAY: a motion, asked once a tick, behind the same filter.

Shapes: `A` action entries.
"""

from dataclasses import dataclass
from typing import Protocol

from numpy.typing import NDArray

from embodied_rl.deployment.execution.tick import Mode


@dataclass(frozen=True)
class MotionStep:
    """A tick of a motion.

    Attributes:
        wanted: float64 [A], as `Tick.proposed`: speeds of velocities and displacements, places of positions. None: ramp
            to rest.
        done: it is over; the robot holds.
        failed: in words, why it was given up; empty if it was not.
    """

    wanted: NDArray | None
    done: bool = False
    failed: str = ""


class Motion(Protocol):
    """A motion. The operator's wish for its mode, with the dead man's switch held, is the yes that it waits for.

    Attributes:
        mode: RETURN or REPLAY. words: what will happen, for whoever says yes.
    """

    mode: Mode
    words: str

    def begin(self, measured: NDArray, commanded: NDArray, now_s: float) -> str:
        """Begin at the present; return in words why it cannot begin from here, empty if it can.

        Args:
            measured: float64 [A] in q, NaN where nothing measures an entry. commanded: float64 [A], the last command.
            now_s: by the core's clock.
        """
        ...

    def step(self, measured: NDArray, now_s: float) -> MotionStep:
        """Return what is wanted now. After a step that is done or failed it is not asked again."""
        ...
