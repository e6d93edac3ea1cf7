"""What goes wrong on the way from a robot's sensors to its topics, on purpose.

Times are those of the stamps, in nanoseconds, so that faults are the same in real time and in lockstep.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from embodied_rl.interfaces.servo import Pose, RobotReading
from embodied_rl.interfaces.sim import Array
from embodied_rl.schema import FaultsNode

Content = TypeVar("Content")


@dataclass(frozen=True)
class States:
    """What the topics of joints and poses say once.

    Attributes:
        stamp_ns: when it was measured. joint_names: in the order of the reading's joints.
    """

    stamp_ns: int
    joint_names: tuple[str, ...]
    reading: RobotReading


@dataclass(frozen=True)
class Pictures:
    """What the cameras show once: pictures uint8 [height, width, 3] by the cameras' names."""

    stamp_ns: int
    pictures: Mapping[str, Array]


class DelayLine(Generic[Content]):
    """Keeps messages until it is time for them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Content]] = deque()

    def pass_on(self, message: Content, now_ns: int, delay_ns: int) -> list[Content]:
        """Take a message, and return those whose time has come."""
        self._waiting.append((now_ns + delay_ns, message))
        ready: list[Content] = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            ready.append(self._waiting.popleft()[1])
        return ready


class SensorFaults:
    """Turns what a robot measures into what it publishes.

    Args:
        faults: what is wrong.
    """

    def __init__(self, faults: FaultsNode) -> None:
        self.faults = faults
        self._random = np.random.default_rng(faults.seed)
        self._late_states: DelayLine[States] = DelayLine()
        self._late_pictures: DelayLine[Pictures] = DelayLine()
        self._frozen: RobotReading | None = None
        self._held: States | None = None
        self._shown: Pictures | None = None

    def jump(self, stamp_ns: int) -> int:
        """Return what the robot's clock says at a time."""
        return stamp_ns + round(self.faults.clock_jump * 1e9)

    def pass_states(self, states: States) -> list[States]:
        """Return what is published of a measurement, in this order; nothing where it is lost or not due yet."""
        kind, befallen = self.faults.states, self._random.random() < self.faults.share
        if kind == "frozen":
            self._frozen = self._frozen or states.reading
            return [replace(states, reading=self._frozen)]
        if kind == "nan":
            return [replace(states, reading=_without_numbers(states.reading)) if befallen else states]
        if kind == "dropped":
            return [] if befallen else [states]
        if kind == "duplicated":
            return [states, states] if befallen else [states]
        if kind == "delayed":
            return self._late_states.pass_on(states, states.stamp_ns, round(self.faults.delay * 1e9))
        if kind == "reordered":
            return self._swap(states)
        if kind == "other_order":
            return [_reorder(states, np.roll(np.arange(len(states.joint_names)), 1))]
        if kind == "missing_joint":
            return [_reorder(states, np.arange(len(states.joint_names) - 1))]
        return [states]

    def _swap(self, states: States) -> list[States]:
        held, self._held = self._held, None
        if held is None:
            self._held = states
            return []
        return [states, held]

    def pass_pictures(self, pictures: Pictures) -> list[Pictures]:
        """Return what is published of the pictures; nothing where they are lost or not due yet."""
        kind = self.faults.cameras
        if kind == "dead":
            return []
        if kind in ("frozen", "frozen_stamps"):
            self._shown = self._shown or pictures
            return [self._shown if kind == "frozen_stamps" else replace(pictures, pictures=self._shown.pictures)]
        if kind == "delayed":
            return self._late_pictures.pass_on(pictures, pictures.stamp_ns, round(self.faults.delay * 1e9))
        return [pictures]


def _without_numbers(reading: RobotReading) -> RobotReading:
    lost = np.full_like(reading.position, np.nan)
    nowhere: Pose = (np.full(3, np.nan), np.full(4, np.nan))
    return RobotReading(lost, lost, nowhere, nowhere)


def _reorder(states: States, order: Array) -> States:
    names = tuple(states.joint_names[place] for place in order.tolist())
    reading = states.reading
    moved = replace(reading, position=reading.position[order], velocity=reading.velocity[order])
    return replace(states, joint_names=names, reading=moved)
