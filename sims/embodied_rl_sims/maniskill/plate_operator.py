"""The scripted operator of the put-on-plate tasks. It knows where things are, and that shapes are boxes."""

from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.maniskill.plate_parts import TABLE_TOP

OPEN, CLOSED = 1.0, -1.0
ABOVE = np.array([0, 0, 0.1])
REACH, TURN = 0.05, 0.4
"""Most of a control step, in metres and radians."""
PALM, TIP = 0.028, 0.022
"""How far an object may reach up between the fingers, and how high the hand stays above the table, in metres."""


def put_on_plate(env: Any) -> Array:
    """Grasp the object across its narrower side, carry it over the plate, lower it, let go; return float32 [7].

    Displacements are those of the hand's target, in metres and radians, along the robot's axes, not the world's.
    """
    base, arm = _matrix(env.agent.robot.pose), env.agent.controller.controllers["arm"]
    target = base @ _matrix(arm._target_pose)
    thing = env.things["carrot"][env.scenes[0].object]
    if bool(env.agent.is_grasping(thing)[0]):
        move, turn, grip = _carry(env, _place(thing))
    else:
        move, turn, grip = _reach(env, _matrix(thing.pose), target)
    along = base[:3, :3].T @ np.clip(move, -REACH, REACH)
    return np.array([*along, 0.0, 0.0, np.clip(turn, -TURN, TURN), grip], np.float32)


def _reach(env: Any, lying: Array, target: Array) -> tuple[Array, float, float]:
    """Return the hand's displacement, rotation and fingers on the way to an object that lies as `lying` [4, 4]."""
    extents, height = env.parts.find_size("carrot", env.scenes[0].object), float(env._sizes[0, 0, 2])
    hand, goal = _place(env.agent.robot.links_map["ee_gripper_link"]), lying[:3, 3].copy()
    goal[2] = max(goal[2], goal[2] + height / 2 - PALM, TABLE_TOP + TIP)
    flat = [axis for axis in range(3) if abs(lying[2, axis]) < 0.7]
    narrow = lying[:2, min(flat, key=lambda axis: extents[axis])]
    turn = np.arctan2(narrow[1], narrow[0]) - np.arctan2(target[1, 1], target[0, 1])
    turn = float((turn + np.pi / 2) % np.pi - np.pi / 2)
    if np.linalg.norm(goal[:2] - hand[:2]) > 0.006 or abs(turn) > 0.05:
        return goal + ABOVE - target[:3, 3], turn, OPEN
    return goal - target[:3, 3], turn, CLOSED if abs(goal[2] - hand[2]) < 0.008 else OPEN


def _carry(env: Any, held: Array) -> tuple[Array, float, float]:
    """Return the displacement, rotation and fingers of a hand that holds the object at `held`."""
    heights = float(env._sizes[:, 0, 2].sum())
    offset = _place(env.things["plate"][env.scenes[0].plate]) - held
    offset[2] += heights / 2 + 0.01
    if np.linalg.norm(offset[:2]) < 0.015:
        return (np.zeros(3), 0.0, OPEN) if offset[2] > -0.01 else (offset, 0.0, CLOSED)
    offset[2] += 0.06
    offset[:2] *= offset[2] < 0.03  # first up, then across
    return offset, 0.0, CLOSED


def _place(body: Any) -> Array:
    return body.pose.p[0].cpu().numpy().astype(float)


def _matrix(pose: Any) -> Array:
    return pose.to_transformation_matrix()[0].cpu().numpy().astype(float)
