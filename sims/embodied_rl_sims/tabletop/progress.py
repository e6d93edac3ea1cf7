"""Progress of the tabletop's tasks from the simulator's true state, for n environments at once.

0 at the start of an episode, 1 where its goal holds, below 0.97 before. The weights of reaching, holding, moving and
releasing are chosen freely; the value rises on a straight path to the goal, and falls on the way back.
"""

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.layout import FAMILIES
from embodied_rl_sims.tabletop.observation import Truth

BEFORE_GOAL = 0.97
BEHIND = 0.058  # metres behind an object, seen from its goal, from which it is pushed
CLEARANCE = 0.025  # metres above the table at which the tool pushes
THERE = 0.043  # metres between an object and its goal
HELD_WIDTH = (0.03, 0.045)  # metres between the fingers that hold an object
HELD_ASIDE, HELD_ABOVE = 0.02, 0.035  # metres between a held object and the tool
RESTING, LIFTED = 0.019, 0.08  # metres, height of an object's centre
CAP_REST, CAP_TRAVEL = 0.035, 0.007  # metres


class ProgressMeter:
    """Compares the true state with that at the start of each episode."""

    def __init__(self, num_envs: int) -> None:
        self._family = np.zeros(num_envs, np.int64)
        self._fresh = np.zeros(num_envs, bool)
        self.start = np.zeros((num_envs, 8))
        """Tool [3], target [3] and goal [2] at the start, in metres."""

    def begin(self, row: int, family: str) -> None:
        """Set the task family of the episode that begins in a row; its start is read at the next `measure`."""
        self._family[row], self._fresh[row] = FAMILIES.index(family), True

    def restore(self, start: Array) -> None:
        """Continue episodes that began from these positions, [n, 8]."""
        self.start[:], self._fresh[:] = start, False

    def measure(self, truth: Truth, success: Array) -> Array:
        """Return float64 [n] in 0…1; success: bool [n], whether the goal holds."""
        now = np.concatenate([truth.tool, truth.target, truth.goal], axis=1)
        self.start[self._fresh] = now[self._fresh]
        self._fresh[:] = False
        then = self.start
        margin = np.choose(self._family, [{"push": 0.02, "press": 0.006}.get(family, 0.012) for family in FAMILIES])
        reach = _share(self._distance_to_reach(now), self._distance_to_reach(then), margin)
        away, away_then = _distance_to_goal(now), _distance_to_goal(then)
        moved = _share(away, away_then, THERE)
        by_family = {
            "push": 0.4 * np.maximum(reach, moved) + 0.6 * moved,
            "pick": 0.5 * reach
            + 0.15 * _is_held(now, truth.width)
            + 0.35 * np.clip((now[:, 5] - RESTING) / (LIFTED - RESTING), 0, 1),
            "put": _put(now, truth.width, reach, moved, away < THERE),
            "press": 0.75 * reach + 0.25 * np.clip((CAP_REST - now[:, 5]) / CAP_TRAVEL, 0, 1),
        }
        value = np.choose(self._family, [by_family[family] for family in FAMILIES])
        return np.where(success, 1.0, np.minimum(value, BEFORE_GOAL))

    def _distance_to_reach(self, where: Array) -> Array:
        """Return the distance of the tool to the object; for a push, to the place behind it."""
        target, goal = where[:, 3:6], where[:, 6:8]
        way = goal - target[:, :2]
        unit = way / (np.linalg.norm(way, axis=1, keepdims=True) + 1e-6)
        behind = np.concatenate([target[:, :2] - BEHIND * unit, np.full((len(where), 1), CLEARANCE)], axis=1)
        pushes = self._family == FAMILIES.index("push")
        return np.linalg.norm(where[:, :3] - np.where(pushes[:, None], behind, target), axis=1)


def _share(distance: Array, start: Array, margin: Array | float) -> Array:
    """Return the share of the way from `start` to `margin` metres that is done."""
    return np.clip(1 - (distance - margin) / np.maximum(start - margin, 0.02), 0, 1)


def _distance_to_goal(where: Array) -> Array:
    return np.linalg.norm(where[:, 6:8] - where[:, 3:5], axis=1)


def _is_held(now: Array, width: Array) -> Array:
    beside = np.linalg.norm(now[:, 3:5] - now[:, :2], axis=1) < HELD_ASIDE
    level = np.abs(now[:, 5] - now[:, 2]) < HELD_ABOVE
    return beside & level & (width > HELD_WIDTH[0]) & (width < HELD_WIDTH[1])


def _put(now: Array, width: Array, reach: Array, moved: Array, there: Array) -> Array:
    down = np.clip(1 - (now[:, 5] - 0.03) / 0.05, 0, 1)
    opened = np.clip((width - 0.036) / 0.019, 0, 1)
    held = _is_held(now, width) | there
    return 0.35 * np.where(there, 1, reach) + 0.1 * held + 0.4 * moved + there * (0.07 * down + 0.08 * down * opened)
