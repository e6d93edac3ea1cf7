"""Watchdogs of the core: reasons why the robot must hold, each of which lasts until the settling time has passed."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.freshness import FreshnessGate, StreamGate
from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.execution.tick import Mode, OperatorInput

Vector = NDArray[np.float64]

FORGETTING = 4.0
"""Of `tracking_error`: motion over which a difference between commanded and measured speeds fades to 1/e."""
SMOOTHING_S = 0.5
"""Time constant of the mean motions by which it fades, which averages over noise and over ticks without a new state."""
STANDING = 3
"""Ticks without a change of the clock after which it stands still, as while a simulation is paused."""
WATCHDOGS = ("clock", "sensors", "cameras", "tracking")
WITHOUT_CAMERAS = ("clock", "sensors", "tracking")
"""The watchdogs of teleoperation and of a return, which use no camera."""


class Watchdogs:
    """The freshness gate and the watchdogs of one robot.

    Attributes:
        gate: of its streams. loop, tracking: the watchdogs.
        reasons: to hold at present, by the watchdog's name; empty: none.
        lost: that the robot stopped because commands failed to come, and they have not restarted; empty otherwise.
    """

    def __init__(self, settings: CoreSettings, source_clock: Callable[[], int] | None) -> None:
        self.gate = FreshnessGate(settings.streams, source_clock, settings.settle_s)
        self.loop, self.tracking = LoopWatch(settings.longest_tick_s, settings.lost_s), TrackingWatch(settings)
        self.pictures = PictureWatch(settings, self.gate.streams)
        self._settings = settings
        self.forget()

    def forget(self) -> None:
        """Clear all reasons, at each activation; the gate keeps its readings."""
        self._faults = {name: LatchedFault(self._settings.settle_s) for name in WATCHDOGS}
        self.reasons, self.lost = {name: "" for name in WATCHDOGS}, ""
        self.loop.forget()
        self.tracking.forget()

    def update(self, now: float, command: Vector, measured: Vector) -> None:
        """Update all watchdogs, once in each tick; `command` [A] is of the tick before."""
        loop, went_back = self.loop.update(now)
        if went_back:  # earlier times are invalid
            self.gate.forget()
            self.tracking.forget()
            for fault in self._faults.values():
                fault.restart(now)
        if self.loop.lost:
            self.lost = loop
        if self.lost:  # no command, so there is nothing to follow
            self.tracking.forget()
        found = {
            "clock": loop,
            "sensors": self.gate.explain(now, measuring=True),
            "cameras": self.gate.explain(now, measuring=False) or self.pictures.update(now, measured),
            "tracking": "" if self.lost else self.tracking.update(now, command, measured),
        }
        self.reasons = {name: fault.update(now, found[name]) for name, fault in self._faults.items()}

    def explain(self, mode: Mode) -> str:
        """Return why a mode must hold; empty if nothing blocks it."""
        names = WATCHDOGS if mode in (Mode.RUN, Mode.REPLAY) else WITHOUT_CAMERAS
        return "; ".join(self.reasons[name] for name in names if self.reasons[name])

    def explain_deadman(self, operator: OperatorInput, now: float) -> str:
        """Return why the dead man's switch counts as released; empty if it is held, or the robot has none."""
        longest = self._settings.deadman_s
        if longest is None:
            return ""
        if operator.deadman is None:
            return "the dead man's switch is released"
        silent = now - operator.deadman
        if 0 <= silent <= longest:
            return ""
        return f"the dead man's switch is silent for {silent:.2f} s, at most {longest:g}"


class LatchedFault:
    """A reason to hold, which lasts until it has been absent for the settling time."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s, self._why, self._since = settle_s, "", 0.0

    def restart(self, now: float) -> None:
        """Restart the settling time, after the clock went back."""
        self._since = now

    def update(self, now: float, why: str) -> str:
        """Take the present reason, empty for none; return the reason that holds."""
        if why:
            self._why, self._since = why, now
            return why
        if self._why and now - self._since < self._settle_s:
            return f"{self._why}; well for less than {self._settle_s:g} s"
        self._why = ""
        return ""


class LoopWatch:
    """Watchdog of the control loop's clock: late ticks, and a clock that goes back or stands still.

    Attributes:
        overruns, jumps: how many ticks came too late; how often the clock went back or stood still.
        lost: the last tick came after the robot's command timeout `lost_s`, so that the robot has stopped.
    """

    def __init__(self, longest_s: float, lost_s: float | None = None) -> None:
        self._longest_s, self._last = longest_s, math.nan
        self._lost_s = math.inf if lost_s is None else lost_s
        self._standing = 0  # ticks without a change of the clock
        self.overruns, self.jumps, self.lost = 0, 0, False

    def forget(self) -> None:
        """Forget the last tick."""
        self._last = math.nan

    def is_lost(self, now: float) -> bool:
        """Return whether the robot's command timeout has passed since the last tick."""
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
    """Watchdog of frozen cameras that may repeat an image at rest: the image must change when the robot moves.

    Args:
        settings: of the core. gates: of its streams, by name.
    """

    def __init__(self, settings: CoreSettings, gates: Mapping[str, StreamGate]) -> None:
        box = np.array([entry.high - entry.low for entry in settings.limits.entries])
        self._visible = settings.visible * np.where(np.isfinite(box), box, np.inf)
        self._gates = [gate for gate in gates.values() if gate.rule.sees and gate.rule.may_repeat]
        self._seen: dict[str, tuple[float, Vector]] = {}

    def update(self, now: float, measured: Vector) -> str:
        """Take the measured position [A]; return the reason to hold, empty for none."""
        reasons = []
        for gate in self._gates:
            since, place = self._seen.get(gate.rule.name, (math.nan, measured))
            if since != gate.changed_s:
                self._seen[gate.rule.name] = (gate.changed_s, measured)
            elif now - since > gate.rule.max_age_s and (np.abs(measured - place) > self._visible).any():
                reasons.append(f"{gate.rule.name}: the same picture for {now - since:.2f} s, though the robot moved")
        return "; ".join(reasons)


class TrackingWatch:
    """Watchdog of the tracking error of each measured entry with a finite `tracking_error`.

    A position is compared with its command. For a speed, the commanded distance is compared with the measured one. The
    difference fades over motion that is both commanded and measured, so that contacts and a small error of scale do not
    accumulate; motion that is only commanded or only measured counts in full. A measured value that does not change
    at all while its entry is commanded to move is frozen, even where `may_repeat` is set.

    Attributes:
        drift: float64 [A], the integral of the commanded speeds minus the measured position; 0 for positions.
    """

    def __init__(self, settings: CoreSettings) -> None:
        entries = settings.limits.entries
        self._names = [entry.name for entry in entries]
        self._position = np.array([entry.kind == "position" for entry in entries])
        self._limit = np.where(settings.measured, np.array(settings.tracking_error, np.float64), np.inf)
        self._speed = ~self._position & np.isfinite(self._limit)
        box = np.array([entry.high - entry.low for entry in entries])
        self._visible = np.where(np.isfinite(box), settings.visible * box, self._limit)
        self._longest_s = settings.longest_tick_s
        self._age_s = max((each.max_age_s for each in settings.streams if each.measures), default=math.inf)
        self._last_s, self._changed_s = 0.0, np.zeros(len(self._names))
        self.forget()

    def forget(self) -> None:
        """Restart: commanded and measured position count as equal."""
        self.drift = np.zeros(len(self._names))
        self._means = np.zeros((2, len(self._names)))  # commanded and measured distance of a tick, smoothed
        self._unseen = np.zeros(len(self._names))  # commanded distance since the measured value last changed
        self._before: Vector | None = None  # measured in the tick before

    def update(self, now: float, command: Vector, measured: Vector) -> str:
        """Take the command of the tick before and the present measurement, [A]; return the reason to hold."""
        if self._before is None:
            self._last_s, self._before = now, measured
            self._changed_s = np.full(len(measured), now)
        passed = min(max(now - self._last_s, 0.0), self._longest_s)
        moved = np.where(self._speed, command * passed, 0.0)
        covered = np.where(self._speed, measured - self._before, 0.0)
        self._means += (np.stack([moved, covered]) - self._means) * min(passed / SMOOTHING_S, 1.0)
        shared = np.where(self._means.prod(0) > 0, np.abs(self._means).min(0), 0.0)
        keep = 1 - np.minimum(shared / (FORGETTING * self._limit), 1.0)
        self.drift = self.drift * keep + moved - covered
        same = measured == self._before
        self._unseen = np.where(same, self._unseen + moved, 0.0)
        self._changed_s = np.where(same, self._changed_s, now)
        self._last_s, self._before = now, measured

        error, late = np.abs(np.where(self._position, command - measured, self.drift)), now - self._changed_s
        frozen = self._speed & (np.abs(self._unseen) > self._visible) & (late > self._age_s)
        if not (command[self._speed] != 0).any():  # the robot is at rest where it is measured
            self.drift = np.where(np.abs(self.drift) > self._limit, 0.0, self.drift)
        if (error > self._limit).any():  # an entry that nothing measures is NaN, and its limit infinite
            worst = int(np.argmax(np.where(np.isfinite(error), error - self._limit, -np.inf)))
            return f"{self._names[worst]} is {error[worst]:.4g} from its command, at most {self._limit[worst]:g}"
        if not frozen.any():
            return ""
        worst = int(np.argmax(frozen))
        said = f"the measured value of {self._names[worst]} has been the same for {late[worst]:.2f} s"
        return f"{said}, although it was commanded to move by {self._unseen[worst]:.4g}"
