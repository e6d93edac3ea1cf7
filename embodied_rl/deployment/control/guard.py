"""What stands in the way of a mode at present: stale streams, a clock that cannot be, a robot that does not follow."""

from collections.abc import Callable

from embodied_rl.deployment.control.freshness import FreshnessGate
from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.control.watchdogs import LoopWatch, PictureWatch, TrackingWatch, Trip, Vector
from embodied_rl.deployment.execution.tick import Mode, OperatorInput

NAMES = ("clock", "sensors", "cameras", "tracking")
WATCHES = {Mode.RUN: NAMES, Mode.REPLAY: NAMES}
"""Watchdogs that block a mode; teleoperation and a return need no camera."""
BLIND = ("clock", "sensors", "tracking")


class Guard:
    """The gate and the watchdogs of one robot.

    Attributes:
        gate: of its streams. loop, tracking: see `watchdogs`.
        reasons: that hold at present, by the watchdog's name; empty ones hold nothing.
        lost: in words, that the robot stopped by itself and commands have not begun again; empty: they go on.
    """

    def __init__(self, settings: CoreSettings, source_clock: Callable[[], int] | None) -> None:
        self.gate = FreshnessGate(settings.streams, source_clock, settings.settle_s)
        self.loop, self.tracking = LoopWatch(settings.longest_tick_s, settings.lost_s), TrackingWatch(settings)
        self.pictures = PictureWatch(settings, self.gate.streams)
        self._settings = settings

    def forget(self) -> None:
        """Begin, with each activation: no reason holds. The gate remembers what it has seen."""
        self._trips = {name: Trip(self._settings.settle_s) for name in NAMES}
        self.reasons, self.lost = dict.fromkeys(NAMES, ""), ""
        self.loop.forget()
        self.tracking.forget()

    def update(self, now: float, command: Vector, measured: Vector) -> None:
        """Look at everything, once in each tick; [A] the command of the tick before, and what is measured."""
        loop, went_back = self.loop.update(now)
        if went_back:  # times that were noted before mean nothing any more
            self.gate.forget()
            self.tracking.forget()
            for trip in self._trips.values():
                trip.restart(now)
        if self.loop.lost:
            self.lost = loop
        if self.lost:  # nothing is commanded, and so nothing is followed
            self.tracking.forget()
        found = {
            "clock": loop,
            "sensors": self.gate.explain(now, measuring=True),
            "cameras": self.gate.explain(now, measuring=False) or self.pictures.update(now, measured),
            "tracking": "" if self.lost else self.tracking.update(now, command, measured),
        }
        self.reasons = {name: trip.update(now, found[name]) for name, trip in self._trips.items()}

    def explain(self, mode: Mode) -> str:
        """Return in words why a mode must hold; empty if nothing blocks it."""
        return "; ".join(self.reasons[name] for name in WATCHES.get(mode, BLIND) if self.reasons[name])

    def explain_deadman(self, operator: OperatorInput, now: float) -> str:
        """Return in words why the dead man's switch is released; empty if it is held, or the robot has none."""
        longest = self._settings.deadman_s
        if longest is None:
            return ""
        if operator.deadman is None:
            return "the dead man's switch is released"
        silent = now - operator.deadman
        if 0 <= silent <= longest:
            return ""
        return f"the dead man's switch is silent for {silent:.2f} s, at most {longest:g}"
