"""Parser of the operator's messages: turns devices and topics into an `OperatorInput`. Pure; the time is an argument.

Shapes: `A` action entries. Times are seconds of the core's clock.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import EntryLimits
from embodied_rl.deployment.execution.operator_device import TWIST_AXES, AxisUse, OperatorDevice
from embodied_rl.deployment.execution.tick import LABELS, Mode, OperatorInput

_ASKED = {"hold": Mode.HOLD, "run": Mode.RUN, "go_back": Mode.RETURN, "replay": Mode.REPLAY}
"""Buttons that ask for a mode; the first one wins if several were pressed since the last reading."""


class OperatorInputParser:
    """Parser of one operator's messages, which keeps their latest state.

    An axis counts only after it was at rest, so that a trigger that rests at 1, or a stick that is held while the
    device is connected, moves nothing. A button that is down at first counts from its next press.

    Args:
        device: uses of axes and buttons. entries: of the robot's actions.

    Attributes:
        presses: number of presses of each button of the device.
        held_s: when the dead man's switch was last reported as held; None: it is released.
    """

    def __init__(self, device: OperatorDevice, entries: Sequence[EntryLimits]) -> None:
        self.device, self._entries, self._buttons = device, tuple(entries), device.list_buttons()
        self._place = {entry.name: number for number, entry in enumerate(entries)}
        self._deflection = np.zeros(len(device.axes))
        self._rested = np.zeros(len(device.axes), bool)
        self._pressed: dict[str, bool] = {}
        self._seen_up: set[str] = set()
        self._events: list[str] = []
        self._received_s: float | None = None
        self._touching = False
        self._touched_s: float | None = None
        self.held_s: float | None = None
        self.presses: Counter[str] = Counter()
        self._estop, self._label = False, ""
        self._struck = False  # the emergency stop was pressed since the last reading, even if it is released again
        self._before: Mode | None = None
        self._target, self._integrated_s = np.full(len(entries), math.nan), math.nan

    def receive_joy(self, axes: Sequence[float], buttons: Sequence[int], now_s: float) -> None:
        """Take a message of a joystick; of an invalid one, only the buttons that stop the robot count."""
        used, names = [int(use.axis) for use in self.device.axes], self._buttons
        complete = all(n < len(axes) for n in used) and all(n < len(buttons) for n in names.values())
        if complete and self._take_axes([float(axes[n]) for n in used], 1.0, now_s):
            pressed = {name: bool(buttons[n]) for name, n in names.items()}
            self._seen_up |= {name for name, down in pressed.items() if not down}
            counting = {name: down and name in self._seen_up for name, down in pressed.items()}
            begun = [name for name, down in counting.items() if down and not self._pressed[name]]
            self._events += begun
            self.presses.update(begun)
            self._pressed = counting
            if "estop" in pressed:
                self._pressed["estop"] = pressed["estop"]  # also if it was down at first
                self._struck |= pressed["estop"]
            if "deadman" in pressed:
                self.held_s = now_s if self._pressed["deadman"] else None
            self._update_touch(now_s)
        else:
            self.receive_old_buttons(buttons)

    def receive_old_buttons(self, buttons: Sequence[int]) -> None:
        """Take a message of a joystick that must not move anything, such as a late one: only stops count."""
        down = {name for name, n in self._buttons.items() if n < len(buttons) and buttons[n]}
        self._struck |= "estop" in down
        if self.device.deadman is not None and "deadman" not in down:
            self.held_s = None

    def receive_twist(self, linear: Sequence[float], angular: Sequence[float], now_s: float) -> None:
        """Take a twist: linear [3], angular [3]."""
        given = dict(zip(TWIST_AXES, (*linear, *angular), strict=True))
        if self._take_axes([float(given[use.axis]) for use in self.device.axes], math.inf, now_s):
            self._update_touch(now_s)

    def receive_estop(self, pressed: bool) -> None:
        """Take a message of the emergency stop's topic."""
        self._estop = pressed
        self._struck |= pressed

    def receive_deadman(self, held: bool, now_s: float) -> None:
        """Take a message of the dead man's switch topic."""
        self.held_s = now_s if held else None

    def receive_label(self, text: str) -> None:
        """Take a message of the label topic: success, failure or abort; other texts are ignored."""
        if text in LABELS:
            self._label = text

    def read(self, now_s: float, mode: Mode, commanded: NDArray[np.float64]) -> OperatorInput:
        """Return the operator's present input. A label and a press of a button are returned once.

        A press of the emergency stop counts even if it was released before this reading. Targets of positions start at
        `commanded`, float64 [A], the last command.
        """
        alive = self._received_s is not None and now_s - self._received_s <= self.device.timeout_s
        events, self._events = self._events, []
        label, self._label = self._label or next((each for each in events if each in LABELS), ""), ""
        struck, self._struck = self._struck, False
        if label:
            self._end_takeover()
        return OperatorInput(
            estop=struck or self._estop or self._pressed.get("estop", False),
            reset="reset" in events,
            deadman=self.held_s,
            wanted=self._choose_mode(now_s, mode, alive, events),
            teleop=self._compute_teleop(now_s, mode, commanded) if alive else None,
            teleop_s=self._received_s if alive else None,
            label=label,
            store="store" in events,
        )

    def _take_axes(self, values: Sequence[float], most: float, now_s: float) -> bool:
        """Take the values of the used axes, clipped to ±most; return whether all are finite."""
        if not all(map(math.isfinite, values)):
            return False
        self._received_s = now_s
        for number, (use, value) in enumerate(zip(self.device.axes, values, strict=True)):
            self._rested[number] |= abs(value) <= use.dead_zone
            self._deflection[number] = leave_dead_zone(use, max(-most, min(most, value))) * self._rested[number]
        return True

    def _update_touch(self, now_s: float) -> None:
        """Update whether the operator touches the device, which takes over."""
        pressed = any(self._pressed[place.name] for place in self.device.places)
        moved = bool(self._deflection.any()) or pressed
        self._touching = self._pressed["takeover"] if self.device.takeover is not None else moved
        self._touched_s = now_s if self._touching else self._touched_s

    def _end_takeover(self) -> None:
        """End a takeover without waiting for `sticky_s`; the next touch starts another one."""
        self._before, self._touching, self._touched_s = None, False, None

    def _choose_mode(self, now_s: float, mode: Mode, alive: bool, events: Sequence[str]) -> Mode | None:
        """Return the mode that the operator asks for, by a button or by a touch; None: no change."""
        asked = next((mode for name, mode in _ASKED.items() if name in events), None)
        if asked is not None:
            self._end_takeover()
            return asked
        lately = self._touched_s is not None and now_s - self._touched_s < self.device.sticky_s
        touched = self._touching or lately  # a device that becomes silent while touched stays touched
        if mode not in (Mode.TELEOP, Mode.ESTOP) and touched and alive:
            self._before = Mode.RUN if mode == Mode.RUN else Mode.HOLD  # a return or replay is not resumed
            return Mode.TELEOP
        if mode == Mode.TELEOP and not touched and self._before is not None:
            before, self._before = self._before, Mode.HOLD  # asked for next, if the mode before is refused
            return before
        if mode != Mode.TELEOP:
            self._before = None
        return None

    def _compute_teleop(self, now_s: float, mode: Mode, commanded: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return [A]: speeds, 0 for an axis at rest; targets of positions; NaN for entries without a touch."""
        wanted = np.full(len(self._entries), math.nan)
        moves: dict[str, float] = {}
        for use, deflection in zip(self.device.axes, self._deflection, strict=True):
            moves[use.entry] = moves.get(use.entry, 0.0) + float(deflection) * use.scale
        passed = now_s - self._integrated_s if mode == Mode.TELEOP and self._integrated_s <= now_s else 0.0
        self._integrated_s = now_s
        for name, speed in moves.items():
            number = self._place[name]
            if self._entries[number].kind != "position":
                wanted[number] = speed
            elif not speed:
                self._target[number] = math.nan
            else:  # the target starts at the command, and moves while touched
                start = commanded[number] if math.isnan(self._target[number]) else self._target[number]
                target = start + speed * min(passed, self.device.timeout_s)
                low, high = self._entries[number].low, self._entries[number].high
                wanted[number] = self._target[number] = min(max(target, low), high)
        for place in self.device.places:
            if self._pressed[place.name]:
                wanted[self._place[place.entry]] = self._target[self._place[place.entry]] = place.value
        return wanted


def leave_dead_zone(use: AxisUse, value: float) -> float:
    """Return the deflection of an axis: 0 in the dead zone, continuous at its edge; ±1 on a joystick stays ±1."""
    beyond = max(abs(value) - use.dead_zone, 0.0)
    return math.copysign(beyond / _span(use), value) if beyond else 0.0


def enter_dead_zone(use: AxisUse, deflection: float) -> float:
    """Return the value of an axis with this deflection: the inverse of `leave_dead_zone`."""
    if not deflection:
        return 0.0
    return math.copysign(abs(deflection) * _span(use) + use.dead_zone, deflection)


def _span(use: AxisUse) -> float:
    return 1.0 if use.axis in TWIST_AXES else 1 - use.dead_zone
