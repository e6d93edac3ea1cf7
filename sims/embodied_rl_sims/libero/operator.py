"""A scripted operator for libero_object: it puts objects into a basket, and uses the simulator's true state."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from embodied_rl.interfaces.sim import Array

REACH = 0.05  # metres of motion for an action of 1
OPEN, CLOSE = -1.0, 1.0
_HOVER, _LIFT = 0.12, 0.25  # metres above the object, and above its gripped position
_AWAY = 0.06  # metres between gripper and object; beyond this the grip has failed
_QUARTER, _TURN = 31, 0.5  # control steps of a quarter turn, at this rate


class Phase(IntEnum):
    ABOVE = 0
    DOWN = 1
    GRIP = 2
    UP = 3
    CARRY = 4
    LOWER = 5
    RELEASE = 6


@dataclass
class Operator:
    """The operator of one episode. After a failed grip it tries again with the fingers turned by 90°.

    Attributes:
        phase: its present phase.
        steps: control steps in this phase.
        tries: number of failed grips.
        turned: control steps of turning for the present try.
    """

    phase: Phase = Phase.ABOVE
    steps: int = 0
    tries: int = 0
    turned: int = 0
    height: float = 0.0

    def act(self, thing: Array, basket: Array, gripper: Array) -> Array:
        """Return the next action, float32 [7]; all positions are in metres, [3]."""
        self.steps += 1
        action = np.zeros(7)
        action[6] = CLOSE if Phase.GRIP <= self.phase <= Phase.LOWER else OPEN
        moves: dict[Phase, Callable[[Array, Array, Array, Array], bool]] = {
            Phase.ABOVE: self._above,
            Phase.DOWN: self._down,
            Phase.GRIP: self._grip,
            Phase.UP: self._up,
            Phase.CARRY: self._carry,
            Phase.LOWER: self._lower,
        }
        if self.phase in moves and moves[self.phase](action, thing, basket, gripper):
            self._go(Phase(self.phase + 1))
        return action.astype(np.float32)

    def _above(self, action: Array, thing: Array, _: Array, gripper: Array) -> bool:
        offset = thing - gripper
        offset[2] += _HOVER
        action[:3] = np.clip(offset / REACH, -1, 1)
        if self.tries % 2 and self.turned < _QUARTER:
            self.turned += 1
            action[5] = _TURN
            return False
        return bool(np.linalg.norm(offset[:2]) < 0.008 and abs(offset[2]) < 0.03)

    def _down(self, action: Array, thing: Array, _: Array, gripper: Array) -> bool:
        action[:3] = np.clip((thing - gripper) / REACH, -1, 1)
        return bool(gripper[2] - thing[2] < 0.01 or self.steps > 30)

    def _grip(self, _: Array, __: Array, ___: Array, gripper: Array) -> bool:
        self.height = gripper[2] + _LIFT
        return self.steps > 12

    def _up(self, action: Array, _: Array, __: Array, gripper: Array) -> bool:
        action[2] = 1
        return bool(gripper[2] > self.height or self.steps > 20)

    def _carry(self, action: Array, thing: Array, basket: Array, gripper: Array) -> bool:
        if np.linalg.norm(thing - gripper) > _AWAY:
            self.tries, self.turned = self.tries + 1, 0
            self._go(Phase.ABOVE)
            return False
        offset = (basket - gripper)[:2]
        action[:2] = np.clip(offset / REACH, -1, 1)
        return bool(np.linalg.norm(offset) < 0.015 or self.steps > 60)

    def _lower(self, action: Array, _: Array, __: Array, ___: Array) -> bool:
        action[2] = -0.6
        return self.steps > 10

    def _go(self, phase: Phase) -> None:
        self.phase, self.steps = phase, 0
