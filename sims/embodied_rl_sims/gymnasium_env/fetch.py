"""The Fetch environments of gymnasium-robotics: names of their observation entries, and a scripted operator.

The layout of observations and actions is described by Plappert et al. 2018 (arXiv 1802.09464) and by the package's
documentation: tool, object, fingers; an action is a displacement of the tool (1 means 5 cm) and the gripper.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array

ACTIONS = ("move_x", "move_y", "move_z", "gripper")
_AXES = "xyz"
_TOOL, _OBJECT, _FROM_TOOL, _FINGERS = slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 11)
_ROBOT_WITH_OBJECT = (0, 1, 2, 9, 10, 20, 21, 22, 23, 24)
_GAIN = 8.0  # of the proportional controller: 1 / metres, in units of the largest action
_ABOVE, _BEHIND, _NEAR, _GRIPPED = 0.08, 0.07, 0.02, 0.056  # metres


def is_fetch(id: str) -> bool:
    return id.startswith("Fetch")


def name_entries(id: str, key: str, count: int) -> list[str]:
    """Return the names of the `count` numbers in entry `key` of a Fetch observation; empty if they are not known."""
    if not is_fetch(id):
        return []
    if key in ("desired_goal", "achieved_goal") and count == 3:
        return [f"{key}_{axis}" for axis in _AXES]
    tool, fingers = _axes("tool"), ["finger_left", "finger_right"]
    speed = [*_axes("tool_speed"), "finger_left_speed", "finger_right_speed"]
    if key == "observation" and count == 10:
        return [*tool, *fingers, *speed]
    if key != "observation" or count != 25:
        return []
    object = [*_axes("object"), *_axes("object_from_tool")]
    return [*tool, *object, *fingers, *_axes("object_turn"), *_axes("object_speed"), *_axes("object_spin"), *speed]


def find_robot_entries(id: str, count: int) -> tuple[int, ...] | None:
    """Return the indices of the entries of a Fetch `observation` that a real robot can measure; None if not known."""
    return _ROBOT_WITH_OBJECT if is_fetch(id) and count == 25 else None


def make_operator(id: str) -> Callable[[Mapping[str, Any]], Array]:
    """Return the stateless operator of a Fetch environment: a function from observation to action, float32 [4].

    Raises:
        UserError: this environment has no operator.
    """
    for name, act in (("FetchReach", reach), ("FetchPush", push), ("FetchPickAndPlace", pick_and_place)):
        if id.startswith(name):
            return act
    raise UserError(
        f"sim.id={id} has no scripted operator; FetchReach, FetchPush and FetchPickAndPlace have one.",
        code="operator-missing",
    )


def reach(observation: Mapping[str, Any]) -> Array:
    """Move straight to the goal."""
    return _towards(observation["observation"][_TOOL], observation["desired_goal"], -1)


def push(observation: Mapping[str, Any]) -> Array:
    """Move over the object to its far side, go down, and push it towards the goal."""
    numbers, goal = observation["observation"], observation["desired_goal"]
    tool, object = numbers[_TOOL], numbers[_OBJECT]
    way = (goal - object) * (1, 1, 0)
    left = float(np.linalg.norm(way))
    if left < _NEAR:
        return np.array([0, 0, 0, -1], np.float32)
    way /= left
    behind, offset = object - _BEHIND * way, (tool - object) * (1, 1, 0)
    along = float(offset @ way)
    aligned = along < 0 and float(np.linalg.norm(offset - along * way)) < _NEAR
    if aligned and tool[2] < object[2] + _NEAR:
        return _towards(tool, object + (min(left, _BEHIND) - _NEAR) * way, -1)
    if np.linalg.norm((tool - behind) * (1, 1, 0)) < _NEAR:
        return _towards(tool, behind, -1)
    high = object[2] + _ABOVE
    return _towards(tool, np.array([*(behind[:2] if tool[2] > high - _NEAR else tool[:2]), high]), -1)


def pick_and_place(observation: Mapping[str, Any]) -> Array:
    """Move above the object, go down, close the gripper, and carry the object to the goal."""
    numbers, goal = observation["observation"], observation["desired_goal"]
    tool, offset = numbers[_TOOL], numbers[_FROM_TOOL]
    if np.linalg.norm(offset) < _NEAR:
        gripped = numbers[_FINGERS].sum() < _GRIPPED
        return _towards(tool, goal - offset if gripped else tool, -1)
    beside = np.linalg.norm(offset[:2]) > _NEAR / 2
    return _towards(tool, tool + offset + (0, 0, _ABOVE if beside else 0), 1)


def _towards(tool: Array, target: Array, gripper: float) -> Array:
    return np.array([*np.clip(_GAIN * (target - tool), -1, 1), gripper], np.float32)


def _axes(name: str) -> list[str]:
    return [f"{name}_{axis}" for axis in _AXES]
