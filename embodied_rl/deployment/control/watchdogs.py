"""The watchdogs: each says in words why the robot must hold, and goes on until all was well for the settling time."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.freshness import StreamGate
from embodied_rl.deployment.control.settings import CoreSettings

Vector = NDArray[np.float64]

MEMORY_S = 1.0
"""For how long the distance counts that a speed was commanded, when it is compared with the measured one."""
STANDING = 3
"""Ticks without a change of the clock, after which it stands still: a simulation that is paused."""


class Trip:
    """Holds one reason until it was absent for the settling time."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s, self._why, self._since = settle_s, "", 0.0

    def restart(self, now: float) -> None:
        """Let the settling time begin anew, after the clock went back."""
        self._since = now

    def update(self, now: float, why: str) -> str:
        """Take the reason of this moment, empty for none; return the reason that holds."""
        if why:
            self._why, self._since = why, now
            return why
        if self._why and now - self._since < self._settle_s:
            return f"{self._why}; well for less than {self._settle_s:g} s"
        self._why = ""
        return ""


class LoopWatch:
    """Watches the loop's clock: ticks that come late, a clock that goes back or stands still.

    Args:
        longest_s: a tick that comes later is an overrun.
        lost_s: see `CoreSettings`.

    Attributes:
        overruns, jumps: how many ticks came too late; how often the clock went back or stood still.
        lost: the last tick came so late that the robot has stopped by itself.
    """

    def __init__(self, longest_s: float, lost_s: float | None = None) -> None:
        self._longest_s, self._last, self._standing = longest_s, math.nan, 0
        self._lost_s = math.inf if lost_s is None else lost_s
        self.overruns, self.jumps, self.lost = 0, 0, False

    def forget(self) -> None:
        """Begin anew: the next tick has none before it."""
        self._last, self._standing, self.lost = math.nan, 0, False

    def is_lost(self, now: float) -> bool:
        """Return whether a tick would come so late now that the robot has stopped by itself."""
        return now - self._last > self._lost_s

    def update(self, now: float) -> tuple[str, bool]:
        """Take the time of a tick; return the reason to hold, empty for none, and whether the clock went back."""
        passed, self._last = now - self._last, now
        self._standing = self._standing + 1 if passed == 0 else 0
        self.lost = passed > self._lost_s
        if passed < 0:
            self.jumps += 1
            return f"the clock went back by {-passed:.3f} s", True
        self.overruns += passed > self._longest_s
        if self.lost:
            stops = f"after {self._lost_s:g} s the robot stops by itself"
            return f"no command was given for {passed:.3f} s, and {stops}: commands begin again where it is", False
        if passed > self._longest_s:
            return f"the loop was late: {passed:.3f} s between two ticks, at most {self._longest_s:g}", False
        if self._standing >= STANDING:
            self.jumps += self._standing == STANDING
            return "the clock stands still", False
        return "", False


class PictureWatch:
    """Watches for cameras that repeat one picture while the robot moves, also where a resting robot's may repeat.

    Args:
        settings: of the core. gates: of its streams.
    """

    def __init__(self, settings: CoreSettings, gates: Mapping[str, StreamGate]) -> None:
        box = np.array([entry.high - entry.low for entry in settings.limits.entries])
        self._visible = settings.visible * np.where(np.isfinite(box), box, np.inf)
        self._gates = [gate for gate in gates.values() if gate.rule.sees and gate.rule.may_repeat]
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._seen: dict[str, tuple[float, Vector]] = {}

    def update(self, now: float, measured: Vector) -> str:
        """Take what is measured, [A]; return the reason to hold, empty for none."""
        return "; ".join(words for gate in self._gates if (words := self._compare(gate, now, measured)))

    def _compare(self, gate: StreamGate, now: float, measured: Vector) -> str:
        since, place = self._seen.get(gate.rule.name, (math.nan, measured))
        if since != gate.changed_s:
            self._seen[gate.rule.name] = (gate.changed_s, measured)
            return ""
        same = now - since
        if same <= gate.rule.max_age_s or not (np.abs(measured - place) > self._visible).any():
            return ""
        return f"{gate.rule.name}: the same picture for {same:.2f} s, though the robot moved"


class TrackingWatch:
    """Compares what is commanded with what is measured.

    A position is compared as it is. Of a speed it is the distance of about the last second: what was commanded, less
    what was covered.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self._names = [entry.name for entry in settings.limits.entries]
        self._position = np.array([entry.kind == "position" for entry in settings.limits.entries])
        self._limit = np.where(settings.measured, np.array(settings.tracking_error, np.float64), np.inf)
        self._keep = math.exp(-settings.period_s / MEMORY_S)
        self._period_s, self._active = settings.period_s, bool(np.isfinite(self._limit).any())
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._gap = np.zeros(len(self._names))
        self._before: Vector | None = None

    def update(self, command: Vector, measured: Vector) -> str:
        """Take the command of the tick before and what is measured now, [A]; return the reason to hold."""
        if not self._active:
            return ""
        covered = 0.0 if self._before is None else measured - self._before
        self._gap = (self._gap + command * self._period_s - covered) * self._keep
        self._before = measured
        error = np.abs(np.where(self._position, command - measured, self._gap))
        if not (error > self._limit).any():  # an entry that nothing measures is NaN, and its limit infinite
            return ""
        worst = int(np.argmax(np.where(np.isfinite(error), error - self._limit, -np.inf)))
        return f"{self._names[worst]} is {error[worst]:.4g} from its command, at most {self._limit[worst]:g}"
