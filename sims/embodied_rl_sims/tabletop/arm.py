"""The arm's geometry and its inverse kinematics in closed form.

The third and the fifth joint of a Franka-proportioned arm are held at zero. This leaves a planar arm of two links on a
turning shoulder: with the hand pointing straight down, its joints follow from the law of cosines. Lengths are those of
the Franka Emika Panda (its published DH parameters)."""

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.settings import LAG, WORKSPACE_HIGH, WORKSPACE_LOW

SHOULDER_HEIGHT = 0.333
UPPER_ARM, FOREARM, ELBOW_OFFSET = 0.316, 0.384, 0.0825
WRIST_OFFSET = 0.088
HAND_LENGTH = 0.107 + 0.1034  # flange, then the tool centre point between the finger tips

_LINK_1 = np.hypot(UPPER_ARM, ELBOW_OFFSET)
_LINK_2 = np.hypot(FOREARM, ELBOW_OFFSET)
_BEND_1 = np.arctan2(ELBOW_OFFSET, UPPER_ARM)
_BEND_2 = np.arctan2(ELBOW_OFFSET, FOREARM)


def solve_inverse(position: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute joint angles that hold the tool at `position`, pointing down, fingers opening along world y.

    Args:
        position: [n, 3] metres in the frame of the arm's base.

    Returns:
        [n, 7] radians. If the position is out of reach, the arm stretches towards it.
    """
    x, y, z = position.T
    radius = np.hypot(x, y) - WRIST_OFFSET
    height = z + HAND_LENGTH - SHOULDER_HEIGHT
    reach = np.minimum(np.hypot(radius, height), (_LINK_1 + _LINK_2) * 0.999)
    shoulder = np.arccos((_LINK_1**2 + reach**2 - _LINK_2**2) / (2 * _LINK_1 * reach))
    elbow = np.arccos((_LINK_1**2 + _LINK_2**2 - reach**2) / (2 * _LINK_1 * _LINK_2))
    link_1 = np.arctan2(radius, height) - shoulder  # angle from the vertical
    forearm = link_1 + np.pi - elbow + _BEND_2
    pan, lift = np.arctan2(y, x), link_1 - _BEND_1
    zero = np.zeros_like(pan)
    return np.stack([pan, lift, zero, lift - forearm, zero, forearm, pan + np.pi / 4], axis=1)


def follow_action(command: Array, tool: Array, action: Array, running: Array) -> tuple[Array, Array]:
    """Move the commanded points of n environments; return them, float64 [n, 3] metres, and joint commands [n, 9].

    Args:
        command, tool: float64 [n, 3] metres, the commanded points and the tools.
        action: [n, 4], displacements in metres and the gripper's opening -1…1.
        running: bool [n]; the points of the others stay.
    """
    goal = np.clip(command + action[:, :3], WORKSPACE_LOW, WORKSPACE_HIGH)
    moved = np.where(running[:, None], tool + np.clip(goal - tool, -LAG, LAG), command)
    moved[:, 2] = np.maximum(moved[:, 2], WORKSPACE_LOW[2])
    fingers = 0.02 * (action[:, 3:] + 1)
    return moved, np.concatenate([solve_inverse(moved), fingers, fingers], axis=1)
