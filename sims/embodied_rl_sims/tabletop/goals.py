"""Judge success and failure of the tasks, for all environments at once."""

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.tabletop.layout import FIXTURES, KINDS, Layout

LIFTED = 0.08  # metres, height of a picked object's centre
IN_ZONE = 0.045  # metres from the zone's centre, on each axis
ON_PLATE, IN_BOWL = 0.045, 0.042  # metres from the centre
ON_TABLE, RELEASED = 0.03, 0.055  # height of a centre; opening of the gripper
RAISED = 0.045  # height of a centre above that of any lying or leaning object
PRESSED, CAP_TOP = -0.007, 0.035  # metres, travel of a cap, and the height of its top at rest

_KINDS = ("pick", "zone", "plate", "bowl", "press")
_WRONG = ("wrong object lifted", *["wrong object placed"] * 3, "wrong button pressed")
"""Failures that end an episode, in the order of `_KINDS`."""


class Goals:
    """The goals of n environments, judged together.

    Attributes:
        position: [n, 2] metres, centre of the goal's fixture. rewarded: [n], whether success was already rewarded.
        raised: bool [n], whether the target was ever in the air.
        displaced_at: [n], control step at which the target jumps, -1 for never.
        excused: bool [n, 3], failures that already held when a later goal of an episode began, and still hold.
    """

    def __init__(self, num_envs: int) -> None:
        self._kind = np.zeros(num_envs, np.int64)
        self._target = np.zeros(num_envs, np.int64)
        self._goal = np.zeros(num_envs, np.int64)
        self.position = np.zeros((num_envs, 2))
        self.rewarded, self.raised = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self.displaced_at = np.full(num_envs, -1)
        self.excused = np.zeros((num_envs, len(KINDS)), bool)
        self._rows = np.arange(num_envs)

    def begin(self, row: int, layout: Layout, fixtures: Array) -> None:
        """Set a row's goal to that of an episode; fixtures [6, 2] metres."""
        name = layout.family if layout.family in ("pick", "press") else FIXTURES[layout.goal]
        self._kind[row], self._target[row], self._goal[row] = _KINDS.index(name), layout.target, layout.goal
        self.rewarded[row] = self.raised[row] = self.excused[row] = False
        self.displaced_at[row] = -1 if layout.displacement is None else layout.displacement[0]
        self.move(row, fixtures)

    def move(self, row: int, fixtures: Array) -> None:
        """Update the goal's position after the fixtures have moved."""
        if self._goal[row] >= 0:
            self.position[row] = fixtures[self._goal[row]]

    def targets(self, objects: Array, caps: Array) -> Array:
        """Return [n, 3] metres: the centre of the object to be moved, or the top of the button to be pressed.

        Args:
            objects: [n, 3, 3] metres, centres. caps: [n, 2] metres, travel.
        """
        cap = caps[self._rows, np.minimum(self._target, 1)]
        button = np.column_stack([self.position, CAP_TOP + cap])
        return np.where(self.is_press[:, None], button, objects[self._rows, self._target])

    def places(self, targets: Array) -> Array:
        """Return the goal positions of `targets`, [n, 2] metres; their present positions if they are only lifted."""
        return np.where(self._goal[:, None] < 0, targets[:, :2], self.position)

    @property
    def is_press(self) -> Array:
        """Return bool [n]: whether the goal is to press a button."""
        return self._kind == _KINDS.index("press")

    def judge(self, objects: Array, caps: Array, width: Array) -> tuple[Array, Array]:
        """Return whether each goal holds, and whether it failed: a wrong object lifted or placed, or button pressed.

        Args:
            objects: [n, 3, 3] metres, centres. caps: [n, 2] metres, travel. width: [n] metres, of the gripper.
        """
        self.raised |= objects[self._rows, self._target, 2] > RAISED
        done = self._hold(objects, caps, width)
        success = done[self._rows, self._target]
        self.excused &= done
        return success, (done.sum(axis=1) - success) > self.excused.sum(axis=1)

    def excuse(self, row: int, objects: Array, caps: Array, width: Array) -> None:
        """Ignore failures that hold when a row's goal begins, such as the object in hand, until they cease to hold."""
        self.excused[row] = self._hold(objects, caps, width)[row]
        self.excused[row, self._target[row]] = False

    def _hold(self, objects: Array, caps: Array, width: Array) -> Array:
        """Return which objects or buttons satisfy the goal's condition for its target, bool [n, 3]."""
        offset = objects[:, :, :2] - self.position[:, None]
        distance = np.hypot(offset[..., 0], offset[..., 1])
        down = objects[:, :, 2] < ON_TABLE
        free = down & (width > RELEASED)[:, None]
        by_kind = np.stack([
            objects[:, :, 2] > LIFTED,
            down & (np.abs(offset).max(axis=-1) < IN_ZONE),
            free & (distance < ON_PLATE),
            free & (distance < IN_BOWL),
            np.concatenate([caps < PRESSED, np.zeros((len(caps), 1), bool)], axis=1),
        ])  # fmt: skip
        return by_kind[self._kind, self._rows]

    def explain_failure(self, row: int, place: Array, terminated: bool) -> str:
        """Return why the episode of a row failed; "" if it reached its goal.

        Args:
            row: index of the environment.
            place: [3] metres, centre of the object to be moved.
            terminated: whether the episode failed before its time limit.
        """
        if self.rewarded[row]:
            return ""
        if terminated:
            return _WRONG[self._kind[row]]
        kind = _KINDS[self._kind[row]]
        radius = {"pick": 0.0, "bowl": IN_BOWL}.get(kind, ON_PLATE)
        if kind == "press":
            found = "button not pressed"
        elif not self.raised[row]:
            found = "object never lifted"
        elif place[2] >= ON_TABLE:
            found = "object not lifted high enough" if kind == "pick" else "object not put down"
        elif np.hypot(*(place[:2] - self.position[row])) < radius:
            found = "object not released"
        else:
            found = "object dropped"
        return f"time limit: {found}"
