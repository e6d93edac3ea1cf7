"""A scripted operator for libero_object: it puts objects into a basket, and uses the simulator's true state."""

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
        offset, done = thing - gripper, False
        match self.phase:
            case Phase.ABOVE:
                offset[2] += _HOVER
                action[:3] = np.clip(offset / REACH, -1, 1)
                if self.tries % 2 and self.turned < _QUARTER:
                    self.turned += 1
                    action[5] = _TURN
                else:
                    done = np.linalg.norm(offset[:2]) < 0.008 and abs(offset[2]) < 0.03
            case Phase.DOWN:
                action[:3] = np.clip(offset / REACH, -1, 1)
                done = gripper[2] - thing[2] < 0.01 or self.steps > 30
            case Phase.GRIP:
                self.height = gripper[2] + _LIFT
                done = self.steps > 12
            case Phase.UP:
                action[2] = 1
                done = gripper[2] > self.height or self.steps > 20
            case Phase.CARRY if np.linalg.norm(offset) > _AWAY:
                self.phase, self.steps, self.tries, self.turned = Phase.ABOVE, 0, self.tries + 1, 0
            case Phase.CARRY:
                way = (basket - gripper)[:2]
                action[:2] = np.clip(way / REACH, -1, 1)
                done = np.linalg.norm(way) < 0.015 or self.steps > 60
            case Phase.LOWER:
                action[2] = -0.6
                done = self.steps > 10
            case Phase.RELEASE:
                pass
        if done:
            self.phase, self.steps = Phase(self.phase + 1), 0
        return action.astype(np.float32)
