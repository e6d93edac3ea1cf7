"""A scripted human: takes over where the policy makes no progress, helps, lets go, and says how the episode ended.

It stands for an operator in tests and experiments with a simulated robot, whose own operator tells it what to do. It is
pure: it sees what it is shown, and time is handed in. Shapes: `A` action entries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import EntryKind
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.interfaces.errors import UserError


@dataclass(frozen=True)
class HumanSettings:
    """How a scripted human behaves.

    Attributes:
        patience_s: takes over when progress has not risen by `least` for so long.
        least: rise of progress, 0…1, that counts.
        enough: lets go when progress has risen by so much since the takeover.
        longest_s: lets go after so long at the latest, and looks on for another `patience_s`.
        reaction_s: between what the human sees and what the human does.
        labels: whether the human says how an episode ended.

    Raises:
        UserError: a number is below 0, or nothing would ever count.
    """

    patience_s: float = 2.0
    least: float = 0.02
    enough: float = 0.2
    longest_s: float = 4.0
    reaction_s: float = 0.2
    labels: bool = True

    def __post_init__(self) -> None:
        for name in ("patience_s", "least", "enough", "longest_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"a scripted human's {name}={getattr(self, name)} must be above 0.")
        if not 0 <= self.reaction_s <= self.patience_s:
            raise UserError(
                f"reaction_s={self.reaction_s} must be 0 or more, and patience_s={self.patience_s} at most."
            )


@dataclass(frozen=True)
class Sight:
    """What a human sees.

    Attributes:
        now_s: by the core's clock. mode: what the robot does. progress: of the task, 0…1.
        outcome: success or failure once the episode has ended so; empty before.
        advice: float32 [A], what an expert would do now, in the policy's units.
    """

    now_s: float
    mode: Mode
    progress: float
    advice: NDArray[np.float32]
    outcome: str = ""


class ScriptedHuman:
    """One human at one robot.

    Args:
        settings: how the human behaves. kinds: of the A entries. control_hz: control steps per second.

    Attributes:
        takeovers: how often the human took over since it was made.
    """

    def __init__(self, settings: HumanSettings, kinds: Sequence[EntryKind], control_hz: float) -> None:
        self.settings, self.takeovers = settings, 0
        self._factor = np.array([control_hz if kind == "displacement" else 1.0 for kind in kinds])
        self.begin()

    def begin(self) -> None:
        """Begin to watch an episode."""
        self._driving, self._said = False, False
        self._best, self._rose_s = -math.inf, math.nan
        self._since_s, self._helped_from = math.nan, 0.0
        self._will: tuple[float, bool] | None = None

    def act(self, sight: Sight) -> OperatorInput:
        """Return what the human does now; the dead man's switch is always held."""
        self._watch(sight)
        self._decide(sight)
        if self._will is not None and sight.now_s >= self._will[0]:
            self._change(self._will[1], sight)
        wanted = None
        if self._driving and sight.mode != Mode.TELEOP:
            wanted = Mode.TELEOP
        elif not self._driving and sight.mode == Mode.TELEOP:
            wanted = Mode.RUN
        drives = self._driving and not sight.outcome
        label = sight.outcome if self.settings.labels and sight.outcome and not self._said else ""
        self._said |= bool(label)
        return OperatorInput(
            deadman=sight.now_s,
            wanted=wanted,
            teleop=(self._factor * sight.advice).astype(np.float64) if drives else None,
            teleop_s=sight.now_s if drives else None,
            label=label,
        )

    def _watch(self, sight: Sight) -> None:
        if math.isnan(self._rose_s) or sight.progress >= self._best + self.settings.least:
            self._best, self._rose_s = max(sight.progress, self._best), sight.now_s

    def _decide(self, sight: Sight) -> None:
        """Make up the human's mind; what was decided happens `reaction_s` later."""
        if self._will is not None:
            return
        if self._driving:
            risen = sight.progress - self._helped_from >= self.settings.enough
            tired = sight.now_s - self._since_s >= self.settings.longest_s
            changes = risen or tired or bool(sight.outcome)
        else:
            stalled = sight.now_s - self._rose_s >= self.settings.patience_s - self.settings.reaction_s
            changes = stalled and sight.mode == Mode.RUN and not sight.outcome
        if changes:
            self._will = sight.now_s + self.settings.reaction_s, not self._driving

    def _change(self, drives: bool, sight: Sight) -> None:
        self._will = None
        self._driving = drives and not sight.outcome
        self.takeovers += self._driving
        self._since_s, self._helped_from = sight.now_s, sight.progress
        self._best, self._rose_s = sight.progress, sight.now_s
