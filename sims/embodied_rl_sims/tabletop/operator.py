"""Scripted operator that uses the simulator's true state, accurate or with systematic faults.

The faulty operator stands for human demonstrations: it grasps a little too high, stops pushing too early, places off
centre and presses too lightly, each by an amount drawn per demonstration. The faults exist in demonstrations only.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

OPEN, CLOSED = 1.0, -1.0
RISE = (0.0, 0.0, 0.03, OPEN)
"""Action after each goal but the last: open the gripper and rise."""
_TRAVEL, _HOVER, _LOW = 0.10, 0.075, 0.022  # heights of the tool in metres


@dataclass(frozen=True)
class Faults:
    """The errors of an operator, in metres.

    Attributes:
        grasp_high: height above an object's centre at which it closes the gripper.
        push_short: distance before the goal at which it stops a push.
        place_off: [2] offset from the goal at which it releases an object.
        press_high: height above the depth that presses a button, at which it stops.
    """

    grasp_high: float = 0.0
    push_short: float = 0.0
    place_off: tuple[float, float] = (0.0, 0.0)
    press_high: float = 0.0


def draw_faults(rng: np.random.Generator) -> Faults:
    """Draw the faults of one demonstration by the faulty operator."""
    return Faults(
        grasp_high=float(rng.uniform(0.006, 0.030)),
        push_short=float(rng.uniform(0.020, 0.070)),
        place_off=(float(rng.uniform(0.005, 0.050)), 0.0),
        press_high=float(rng.uniform(0.0, 0.024)),
    )


@dataclass(frozen=True)
class OperatorView:
    """The operator's view of one environment: positions in metres.

    Attributes:
        family: family of the task. tool, command: [3] actual and commanded position of the tool.
        width: opening of the gripper. target: [3] centre of the object or top of the button. goal: [2] of the fixture.
        step_limit: maximum motion of the command per action on each axis.
    """

    family: str
    tool: Vector
    command: Vector
    width: float
    target: Vector
    goal: Vector
    step_limit: float


def choose_action(scene: OperatorView, faults: Faults = Faults()) -> Vector:
    """Return one control step's action: [dx, dy, dz in metres, gripper in -1…1]."""
    if scene.family in ("push", "press"):
        return (_push if scene.family == "push" else _press)(scene, faults)
    if not _holds(scene, faults):
        return _reach(scene, faults)
    if scene.family == "pick":
        return _go(scene, (scene.tool[0], scene.tool[1], 0.20), CLOSED)
    return _put(scene, faults)


def _go(scene: OperatorView, point: Iterable[float], gripper: float) -> Vector:
    move = np.clip(np.array([*point]) - scene.command, -scene.step_limit, scene.step_limit)
    return np.array([*move, gripper])


def _holds(scene: OperatorView, faults: Faults) -> bool:
    beside = np.linalg.norm(scene.target[:2] - scene.tool[:2])
    above = abs(scene.target[2] + faults.grasp_high - scene.tool[2])
    return bool(0.03 < scene.width < 0.045 and beside < 0.02 and above < 0.02)


def _reach(scene: OperatorView, faults: Faults) -> Vector:
    """Move over the target, go down, close the gripper."""
    x, y, z = scene.target
    beside = float(np.linalg.norm(scene.target[:2] - scene.tool[:2]))
    height = max(z + faults.grasp_high, _LOW - 0.003)
    if beside > 0.012:
        if scene.tool[2] < 0.05 and beside > 0.02:
            return _go(scene, (scene.tool[0], scene.tool[1], _TRAVEL), OPEN)
        return _go(scene, (x, y, _HOVER + 0.01 if beside > 0.025 else 0.055), OPEN)
    return _go(scene, (x, y, height), OPEN if scene.tool[2] > height + 0.008 else CLOSED)


def _put(scene: OperatorView, faults: Faults) -> Vector:
    """Carry the object in hand to its goal, go down, open the gripper."""
    goal = scene.goal + np.array(faults.place_off)
    away = float(np.linalg.norm(goal - scene.target[:2]))
    if away > 0.015:
        if scene.tool[2] < 0.06 and away > 0.03:
            return _go(scene, (scene.tool[0], scene.tool[1], _TRAVEL), CLOSED)
        return _go(scene, (goal[0], goal[1], 0.09 if away > 0.03 else 0.06), CLOSED)
    if scene.target[2] > 0.029:
        return _go(scene, (goal[0], goal[1], _LOW + faults.grasp_high), CLOSED)
    return _go(scene, scene.tool, OPEN)


def _push(scene: OperatorView, faults: Faults) -> Vector:
    way = scene.goal - scene.target[:2]
    length = float(np.linalg.norm(way)) + 1e-6
    direction = way / length
    length -= faults.push_short
    if length < 0.006:
        return _go(scene, scene.tool, CLOSED)
    behind = scene.target[:2] - 0.058 * direction
    offset = scene.tool[:2] - scene.target[:2]
    along = float(offset @ direction)
    beside = offset - along * direction
    if scene.tool[2] > 0.055:
        near = np.linalg.norm(scene.tool[:2] - behind) < 0.03
        return _go(scene, (*behind, 0.025 if near else 0.09), CLOSED)
    if along < -0.025 and np.linalg.norm(beside) < 0.016:
        forward = scene.tool[:2] + direction * min(0.03, length) - 0.8 * beside
        return _go(scene, (*forward, 0.025), CLOSED)
    if np.linalg.norm(scene.tool[:2] - behind) > 0.02 and (along > -0.03 or np.linalg.norm(beside) > 0.03):
        return _go(scene, (scene.tool[0], scene.tool[1], _TRAVEL), CLOSED)
    return _go(scene, (*behind, 0.025), CLOSED)


def _press(scene: OperatorView, faults: Faults) -> Vector:
    x, y, _ = scene.target
    beside = np.linalg.norm(scene.target[:2] - scene.tool[:2])
    if beside > 0.012:
        return _go(scene, (x, y, _HOVER if scene.tool[2] > 0.05 or beside < 0.02 else _TRAVEL), CLOSED)
    return _go(scene, (x, y, 0.029 + faults.press_high), CLOSED)
