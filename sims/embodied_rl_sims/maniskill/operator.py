"""A scripted operator for end-effector control: a stateless proportional controller on the simulator's true state.

Units: metres; the package's end-effector actions are ±1 for ±0.1 m per control step along each axis of the table. The
hand never turns: its fingers open wider than the cube's diagonal, and closing them turns the cube.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array

MODES = ("pd_ee_delta_pos", "pd_ee_delta_pose")
OPEN, CLOSED = 1.0, -1.0

_STEP = 0.1
_ABOVE = np.array([0, 0, 0.08])  # offset from a cube's centre
_BEHIND = np.array([-0.08, 0, 0])


def pick_cube(env: Any) -> Array:
    """Hover over the cube, descend, grasp it, carry it to the goal; return [x, y, z, gripper]."""
    hand, cube, goal = _place(env.agent.tcp), _place(env.cube), _place(env.goal_site)
    to_cube = cube - hand
    if np.linalg.norm(to_cube) < 0.015:
        holds = bool(env.agent.is_grasping(env.cube)[0])
        return _move(goal - cube if holds else np.zeros(3), CLOSED)
    if np.linalg.norm(to_cube[:2]) > 0.01:
        return _move(to_cube + _ABOVE, OPEN)
    return _move(to_cube, OPEN)


def push_cube(env: Any) -> Array:
    """Move behind the cube with closed fingers, then push it along x to the goal; return [x, y, z, gripper]."""
    hand, cube, goal = _place(env.agent.tcp), _place(env.obj), _place(env.goal_region)
    to_cube = cube - hand
    if to_cube[0] > 0.03 and abs(to_cube[1]) < 0.015 and to_cube[2] > -0.015:
        return _move(np.array([goal[0] - cube[0], *to_cube[1:]]), CLOSED)
    to_start = to_cube + _BEHIND
    is_over_start = np.linalg.norm(to_start[:2]) < 0.015
    return _move(to_start if is_over_start else to_start + _ABOVE, CLOSED)


OPERATORS: dict[str, Callable[[Any], Array]] = {"PickCube-v1": pick_cube, "PushCube-v1": push_cube}
"""Task → an operator: environment → float64 [4]."""


def choose_action(env: Any, task: str, control_mode: str) -> Array:
    """Return the operator's present action: float32 [4] for "pd_ee_delta_pos", float32 [7] for "pd_ee_delta_pose"."""
    *move, gripper = OPERATORS[task](env)
    turn = [0.0, 0.0, 0.0] if control_mode == "pd_ee_delta_pose" else []
    return np.array([*move, *turn, gripper], np.float32)


def _place(body: Any) -> Array:
    return body.pose.p[0].cpu().numpy().astype(float)


def _move(offset: Array, gripper: float) -> Array:
    """Return the action of one control step towards `offset`."""
    return np.array([*np.clip(offset / _STEP, -1, 1), gripper])
