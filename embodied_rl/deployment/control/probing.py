"""Compares small commanded and measured motions once, before anything else moves a robot.

The robot is commanded to hold still, then each measured entry is moved by a small distance and back. A unit, a sign or
an order of joints that differs between the robot's file and its driver shows as a motion that was not commanded.
"""

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.execution.safety_filter import OUTSIDE

Vector = NDArray[np.float64]
HOLD_S, MOVE_S, REST_S = 0.5, 0.25, 0.5
"""Seconds of the first hold, of a motion, and of the rest after it in which the robot follows."""
DISTANCE = 0.05
"""Distance that each entry is moved, of `tracking_error`. Half of it is the largest motion that was not commanded."""

REMEDY = "Compare units, signs and names of state and command in the robot's file with its driver, and start again."


class MotionProbe:
    """Motion probe of one robot; entries that are not measured, or whose `tracking_error` is `inf`, are not moved.

    `pending` is whether it is unfinished, `refused` why the robot failed it; empty otherwise.
    """

    def __init__(self, settings: CoreSettings) -> None:
        entries, period = settings.limits.entries, settings.period_s
        self._names = [entry.name for entry in entries]
        self._position = np.array([entry.kind == "position" for entry in entries])
        self._low, self._high = (np.array(settings.limits.list_values(edge)) for edge in ("low", "high"))
        self._distance = DISTANCE * np.where(settings.measured, np.array(settings.tracking_error), np.inf)
        self._chosen = np.flatnonzero(np.isfinite(self._distance))
        self._ticks = [max(1, round(seconds / period)) for seconds in (HOLD_S, MOVE_S, REST_S)]
        self._period_s = period
        self.pending, self.refused = settings.probe and len(self._chosen) > 0, ""
        self._held = self._leg = self._tick = 0  # ticks of the first hold; number of the motion; tick in the motion
        self._start = self._command = np.zeros(len(entries))  # measured and commanded when the motion began, [A]
        self._moved = self._way = 0.0  # commanded distance until now, and of the whole motion

    def begin(self, measured: Vector) -> None:
        """Start with holding still at the measured position [A]."""
        self._held, self._leg, self._tick = 0, 0, 0
        self._start = self._command = measured

    def find_outside(self, measured: Vector) -> str:
        """Return the first entry that is measured outside its box by more than noise; empty for none."""
        width = np.where(np.isfinite(self._high - self._low), self._high - self._low, 0.0)
        outside = np.maximum(self._low - measured, measured - self._high) > OUTSIDE * width
        return next((self._names[entry] for entry in self._chosen if outside[entry]), "")

    def hold(self, measured: Vector, still: bool) -> None:
        """Probe a tick in which the robot is commanded to rest; `still`: the last command did not move it."""
        if self._tick or self._leg or not still:  # a motion was interrupted
            self.begin(measured)
        elif self._held < self._ticks[0]:
            self._held += 1
            self._check(measured - self._start, self._distance / 2, "the robot was commanded to hold still")

    def move(self, command: Vector, measured: Vector, still: bool) -> Vector | None:
        """Return the target of this tick, [A]; None: rest. `command` [A] is of the tick before."""
        if self._held < self._ticks[0]:
            self.hold(measured, still)
            return None
        _, moves, rests = self._ticks
        entry = int(self._chosen[self._leg // 2])
        if self._tick == 0:
            self._start, self._command, self._moved = measured, command, 0.0
            inwards = -1.0 if self._high[entry] - measured[entry] < measured[entry] - self._low[entry] else 1.0
            self._way = -self._way if self._leg % 2 else inwards * float(self._distance[entry])
        elif self._position[entry]:
            self._moved = float(command[entry] - self._command[entry])
        else:
            self._moved += float(command[entry] * self._period_s)
        self._check(measured - self._start, 2 * self._distance, f"{self._names[entry]} was commanded to move")
        if self._tick == moves + rests:  # compare the commanded with the measured motion, and begin the next one
            moved = measured - self._start
            said = f"{self._names[entry]} was commanded to move by {self._moved:.4g}"
            if abs(moved[entry] - self._moved) > abs(self._moved) / 2:
                self.refused = f"{said} and was measured to move by {moved[entry]:.4g}. {REMEDY}"
            moved[entry] = 0.0
            self._check(moved, self._distance / 2, said)
            self._leg, self._tick = self._leg + 1, 0
            self.pending = self._leg < 2 * len(self._chosen)
            return None
        self._tick += 1
        wanted = np.where(self._position, self._command, 0.0)
        if self._position[entry]:
            wanted[entry] += self._way * min(self._tick / moves, 1.0)
        elif self._tick <= moves:
            wanted[entry] = self._way / (moves * self._period_s)
        return wanted

    def _check(self, moved: Vector, most: Vector, said: str) -> None:
        excess = np.abs(moved[self._chosen]) - most[self._chosen]
        if (excess > 0).any() and not self.refused:
            worst = self._chosen[int(np.argmax(excess / most[self._chosen]))]
            self.refused = f"{self._names[worst]} was measured to move by {moved[worst]:.4g} when {said}. {REMEDY}"
