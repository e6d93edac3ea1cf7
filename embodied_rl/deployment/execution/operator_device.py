"""Mapping of an operator's device: uses of the axes and buttons of a joystick, or of the numbers of a twist.

It is read from the robot's file. Axes of a joystick are numbered from 0, as in `sensor_msgs/msg/Joy`, and lie in -1…1;
axes of a twist are called linear.x … angular.z and have no limits: the safety filter keeps those of the robot.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from embodied_rl.deployment.execution.limits import EntryLimits
from embodied_rl.interfaces.errors import UserError

TWIST_AXES: tuple[str, ...] = ("linear.x", "linear.y", "linear.z", "angular.x", "angular.y", "angular.z")


@dataclass(frozen=True)
class AxisUse:
    """Axis that moves an entry of an action.

    Attributes:
        entry: name of the entry.
        axis: its number on a joystick, or its name in a twist.
        scale: speed in q/s for a deflection of 1, negative to reverse it; q as in `EntryLimits`.
        dead_zone: smaller deflections count as 0; larger ones are rescaled to start at 0.
    """

    entry: str
    axis: str
    scale: float
    dead_zone: float = 0.1


@dataclass(frozen=True)
class ButtonUse:
    """Button that sends an entry to the position `value`, in q, while pressed, such as a gripper's."""

    entry: str
    button: int
    value: float

    @property
    def name(self) -> str:
        """Return the unique name of this use; several buttons may send an entry to one position."""
        return f"{self.entry}={self.value:g} by {self.button}"


@dataclass(frozen=True)
class OperatorDevice:
    """Uses of one device. A button that is None has no use.

    Attributes:
        axes, places: uses that move the robot.
        deadman: button of the dead man's switch.
        takeover: button that takes over while it is held. Without one, touching an axis or a button of `places` does.
        success, failure, abort: buttons that label an episode.
        hold, run, go_back, replay: buttons that ask for a mode; `go_back` starts the motion to a return point.
        store: button that adds the present position to the return points.
        estop, reset: buttons of the emergency stop and its release.
        sticky_s: time without a touch after which a takeover ends and the policy resumes.
        timeout_s: timeout of the device's messages; after it the device moves nothing, and a takeover does not end.
    """

    axes: tuple[AxisUse, ...] = ()
    places: tuple[ButtonUse, ...] = ()
    deadman: int | None = None
    takeover: int | None = None
    success: int | None = None
    failure: int | None = None
    abort: int | None = None
    hold: int | None = None
    run: int | None = None
    go_back: int | None = None
    replay: int | None = None
    store: int | None = None
    estop: int | None = None
    reset: int | None = None
    sticky_s: float = 0.5
    timeout_s: float = 0.25

    def list_buttons(self) -> dict[str, int]:
        """Return the buttons with a use, by name; those of `places` by `ButtonUse.name`."""
        found = {item.name: getattr(self, item.name) for item in fields(self) if item.type == int | None}
        uses = {name: button for name, button in found.items() if button is not None}
        return uses | {place.name: place.button for place in self.places}


def check_device(device: OperatorDevice, entries: Sequence[EntryLimits], type_name: str, where: str) -> None:
    """Raise `UserError` if a device does not fit a robot's entries, or a number is out of range.

    Args:
        type_name: of its messages, sensor_msgs/msg/Joy or geometry_msgs/msg/Twist. where: key, for error messages.
    """
    twist = type_name.endswith("/Twist")
    for use in device.axes:
        _check_axis(use, [entry.name for entry in entries], twist, f"{where}.axes")
    for place in device.places:
        _check_place(place, entries, f"{where}.places")
    if len({use.axis for use in device.axes}) < len(device.axes):
        raise UserError(f"{where}.axes: an axis has two uses. Give each axis one entry.", code="operator-axis-twice")
    _check_buttons(device, twist, where)
    for name in ("sticky_s", "timeout_s"):
        if not 0 < getattr(device, name) <= 10:
            raise UserError(
                f"{where}.{name}={getattr(device, name)} must be above 0 s, and 10 s at most.",
                code="value-out-of-range",
            )


def _check_axis(use: AxisUse, names: Sequence[str], twist: bool, where: str) -> None:
    if use.entry not in names:
        raise UserError(
            f"{where}: the robot has no entry '{use.entry}'. It has {', '.join(names)}.", code="entry-unknown"
        )
    if use.axis not in TWIST_AXES if twist else not use.axis.isdecimal() or int(use.axis) >= 256:
        raise UserError(
            f"{where}: axis '{use.axis}' is none of {', '.join(TWIST_AXES) if twist else '0, 1, 2 …'}.",
            code="operator-axis-unknown",
        )
    if not (math.isfinite(use.scale) and use.scale):
        raise UserError(
            f"{where}: scale={use.scale} of axis {use.axis} must be a speed other than 0.", code="value-out-of-range"
        )
    if not 0 <= use.dead_zone < (math.inf if twist else 1):
        raise UserError(
            f"{where}: dead_zone={use.dead_zone} of axis {use.axis} must be at least 0 and below 1.",
            code="value-out-of-range",
        )


def _check_place(place: ButtonUse, entries: Sequence[EntryLimits], where: str) -> None:
    entry = next((each for each in entries if each.name == place.entry), None)
    if entry is None:
        raise UserError(
            f"{where}: the robot has no entry '{place.entry}'. It has {', '.join(e.name for e in entries)}.",
            code="entry-unknown",
        )
    if entry.kind != "position":
        raise UserError(
            f"{where}: '{place.entry}' is a {entry.kind}, and a button can only set a position.",
            code="operator-button-needs-position",
        )
    if not entry.low <= place.value <= entry.high:
        raise UserError(
            f"{where}: value={place.value} of '{place.entry}' lies outside {entry.low}…{entry.high}.",
            code="value-out-of-range",
        )


def _check_buttons(device: OperatorDevice, twist: bool, where: str) -> None:
    buttons = device.list_buttons()
    if twist and buttons:
        raise UserError(
            f"{where}.{next(iter(buttons))}: a twist has no buttons. Use sensor_msgs/msg/Joy, or remove it.",
            code="operator-button-unknown",
        )
    for name, button in buttons.items():
        if not 0 <= button < 256:
            raise UserError(
                f"{where}.{name}={button} is not the number of a button: 0, 1, 2 …", code="operator-button-unknown"
            )
        if others := [other for other, number in buttons.items() if number == button and other != name]:
            raise UserError(
                f"{where}: button {button} has two uses, {name} and {others[0]}.", code="operator-button-twice"
            )
