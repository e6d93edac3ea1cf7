"""Convert an action to joint commands; the commanded point stays in the workspace and near the tool."""

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop import arm
from embodied_rl_sims.tabletop.settings import LAG, WORKSPACE_HIGH, WORKSPACE_LOW


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
    return moved, np.concatenate([arm.solve_inverse(moved), fingers, fingers], axis=1)
