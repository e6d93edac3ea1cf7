"""Injected faults between the sensors of a simulated robot and its topics.

Times are stamps in nanoseconds, so that faults are the same in real time and in lockstep.
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
    """Contents of one message of joint states and poses.

    Attributes:
        stamp_ns: time of the measurement. joint_names: in the order of the reading's joints.
    """

    stamp_ns: int
    joint_names: tuple[str, ...]
    reading: RobotReading


@dataclass(frozen=True)
class Pictures:
    """Images of all cameras at one time, uint8 [height, width, 3] by camera name."""

    stamp_ns: int
    pictures: Mapping[str, Array]


class DelayLine(Generic[Content]):
    """Queue of delayed messages."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Content]] = deque()

    def pass_on(self, message: Content, now_ns: int, delay_ns: int) -> list[Content]:
        """Add a message, and return those that are due."""
        self._waiting.append((now_ns + delay_ns, message))
        ready: list[Content] = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            ready.append(self._waiting.popleft()[1])
        return ready


class SensorFaults:
    """Applies faults to measurements before they are published."""

    def __init__(self, faults: FaultsNode) -> None:
        self.faults = faults
        self._random = np.random.default_rng(faults.seed)
        self._late_states: DelayLine[States] = DelayLine()
        self._late_pictures: DelayLine[Pictures] = DelayLine()
        self._frozen: RobotReading | None = None
        self._held: States | None = None
        self._shown: Pictures | None = None

    def jump(self, stamp_ns: int) -> int:
        """Return a stamp with the clock jump of the faults."""
        return stamp_ns + round(self.faults.clock_jump * 1e9)

    def filter_states(self, states: States) -> list[States]:
        """Return the messages to publish after a measurement, in order; empty if it is lost or delayed."""
        kind, befallen = self.faults.states, self._random.random() < self.faults.share
        if kind == "frozen":
            self._frozen = self._frozen or states.reading
            return [replace(states, reading=self._frozen)]
        if kind == "nan":
            lost = np.full_like(states.reading.position, np.nan)
            nowhere: Pose = (np.full(3, np.nan), np.full(4, np.nan))
            return [replace(states, reading=RobotReading(lost, lost, nowhere, nowhere)) if befallen else states]
        if kind == "dropped":
            return [] if befallen else [states]
        if kind == "duplicated":
            return [states, states] if befallen else [states]
        if kind == "delayed":
            return self._late_states.pass_on(states, states.stamp_ns, round(self.faults.delay * 1e9))
        if kind == "reordered":
            if self._held is None:
                self._held = states
                return []
            held, self._held = self._held, None
            return [states, held]
        if kind == "other_order":
            return [_reorder(states, np.roll(np.arange(len(states.joint_names)), 1))]
        if kind == "missing_joint":
            return [_reorder(states, np.arange(len(states.joint_names) - 1))]
        return [states]

    def filter_images(self, pictures: Pictures) -> list[Pictures]:
        """Return the images to publish; empty if they are lost or delayed."""
        kind = self.faults.cameras
        if kind == "dead":
            return []
        if kind in ("frozen", "frozen_stamps"):
            self._shown = self._shown or pictures
            return [self._shown if kind == "frozen_stamps" else replace(pictures, pictures=self._shown.pictures)]
        if kind == "delayed":
            return self._late_pictures.pass_on(pictures, pictures.stamp_ns, round(self.faults.delay * 1e9))
        return [pictures]


def _reorder(states: States, order: Array) -> States:
    names = tuple(states.joint_names[place] for place in order.tolist())
    reading = states.reading
    moved = replace(reading, position=reading.position[order], velocity=reading.velocity[order])
    return replace(states, joint_names=names, reading=moved)
