"""A scripted human: takes over when the policy makes no progress, hands back control, and labels episodes.

It replaces the operator in tests and experiments with a simulated robot, whose expert supplies the actions. It is pure:
observations and time are arguments. Shapes: `A` action entries.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import EntryKind
from embodied_rl.deployment.execution.tick import Mode, OperatorInput


@dataclass(frozen=True)
class HumanSettings:
    """Behaviour of a scripted human.

    Attributes:
        patience_s: takes over when progress has not risen by `least` for this time.
        least: smallest rise of progress, 0…1, that counts.
        enough: hands back when progress has risen by this since the takeover.
        longest_s: longest takeover; the next one is possible after `patience_s`.
        reaction_s: delay between observation and action.
    """

    patience_s: float = 2.0
    least: float = 0.02
    enough: float = 0.2
    longest_s: float = 4.0
    reaction_s: float = 0.2


@dataclass(frozen=True)
class HumanObservation:
    """Observation of a human.

    Attributes:
        now_s: time of the core's clock. progress: of the task, 0…1.
        outcome: success or failure after the episode; empty before.
        advise: returns float32 [A], action of the expert, in the policy's units; called only while the human drives.
    """

    now_s: float
    mode: Mode
    progress: float
    advise: Callable[[], NDArray[np.float32]]
    outcome: str = ""


class ScriptedHuman:
    """One human at one robot; `kinds` are those of the A entries."""

    def __init__(self, settings: HumanSettings, kinds: Sequence[EntryKind], control_hz: float) -> None:
        self.settings, self.takeovers = settings, 0
        self._factor = np.array([control_hz if kind == "displacement" else 1.0 for kind in kinds])
        self.begin()

    def begin(self) -> None:
        """Start a new episode."""
        self._driving, self._said = False, False
        self._best, self._rose_s = -math.inf, math.nan
        self._since_s, self._helped_from = math.nan, 0.0
        self._pending: tuple[float, bool] | None = None

    def act(self, seen: HumanObservation) -> OperatorInput:
        """Return the human's inputs; the dead man's switch is always held."""
        if math.isnan(self._rose_s) or seen.progress >= self._best + self.settings.least:
            self._best, self._rose_s = max(seen.progress, self._best), seen.now_s
        self._decide(seen)
        if self._pending is not None and seen.now_s >= self._pending[0]:
            self._driving, self._pending = self._pending[1] and not seen.outcome, None
            self.takeovers += self._driving
            self._since_s, self._helped_from = seen.now_s, seen.progress
            self._best, self._rose_s = seen.progress, seen.now_s
        wanted = None
        if self._driving and seen.mode != Mode.TELEOP:
            wanted = Mode.TELEOP
        elif not self._driving and seen.mode == Mode.TELEOP:
            wanted = Mode.RUN
        drives = self._driving and not seen.outcome
        label = "" if self._said else seen.outcome
        self._said |= bool(label)
        return OperatorInput(
            deadman=seen.now_s,
            wanted=wanted,
            teleop=(self._factor * seen.advise()).astype(np.float64) if drives else None,
            teleop_s=seen.now_s if drives else None,
            label=label,
        )

    def _decide(self, seen: HumanObservation) -> None:
        """Decide on a takeover or its end; the decision takes effect `reaction_s` later."""
        if self._pending is not None:
            return
        if self._driving:
            risen = seen.progress - self._helped_from >= self.settings.enough
            tired = seen.now_s - self._since_s >= self.settings.longest_s
            changes = risen or tired or bool(seen.outcome)
        else:
            stalled = seen.now_s - self._rose_s >= self.settings.patience_s - self.settings.reaction_s
            changes = stalled and seen.mode == Mode.RUN and not seen.outcome
        if changes:
            self._pending = seen.now_s + self.settings.reaction_s, not self._driving
