"""Return points of a robot in a file: the control loop changes them, another thread writes what has changed."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.return_motion import ReturnMotion, ReturnSettings, choose_distances
from embodied_rl.deployment.execution.return_points import (
    ReturnPoint,
    ReturnPoints,
    load_return_points,
    make_return_point,
    save_return_points,
)
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.errors import UserError

Change = Callable[[ReturnPoints], ReturnPoints]
ARRIVED, LOST = 0.01, 0.25
"""Shares of an entry's box: so near a robot has arrived; so far from its line or its recording it is lost, where its
file names no tracking_error."""


class ReturnFile:
    """The return points of one robot.

    Args:
        path: of the file; where there is none, it is made with the first point. robot: its description.
        key: of the configuration that named the file, for messages.

    Attributes:
        points: as they are now, with what is not written yet.
        problem: in words, why changes are not written; empty if all is well.

    Raises:
        UserError: the file is damaged, of another robot, or in a folder that is not there.
    """

    def __init__(self, path: Path, robot: RobotDescription, key: str = "return_points") -> None:
        self.path, self.problem, self._robot, self._key = path, "", robot, key
        self.is_new = not path.exists()
        if not path.parent.is_dir():
            raise UserError(f"{key}={path}: there is no folder {path.parent}. Make it, or correct the path.")
        try:
            self.points = self._load()
        except UserError as error:
            raise UserError(f"{key}: {error}") from None
        self._changes, self._tried = deque[tuple[Change, str]](), 0

    def store(self, measured: NDArray[np.float64], commanded: NDArray[np.float64], words: str) -> ReturnPoint:
        """Add the present place, [A] each, as a point of the task of these words; raises `UserError`: it cannot be."""
        taken = {point.name for point in self.points.points}
        name = next(name for number in range(1, len(taken) + 2) if (name := f"point {number}") not in taken)
        pose = list_pose(self._robot, measured, commanded)
        point = make_return_point(name, words, pose, self._robot.limits)
        self._change(lambda points: points.add(point), f"stored the return point '{name}' of the task '{words}'")
        return point

    def count(self, name: str, failed: bool) -> None:
        """Count an episode that began at a point."""
        what = "failure" if failed else "success"
        self._change(lambda points: points.count(name, failed), f"counted a {what} from the return point '{name}'")

    def make_motion(self, point: ReturnPoint) -> ReturnMotion:
        """Return the motion to a point."""
        return make_return_motion(self._robot, point)

    def write(self) -> list[str]:
        """Write what has changed since it was written last, and return in words what that was.

        What somebody else changed in the file meanwhile stays. What cannot be written is kept, `problem` says why, and
        it is tried again with the next change.
        """
        count = len(self._changes)
        if count == self._tried:
            return []
        waiting, self._tried = list(islice(self._changes, count)), count
        try:
            points = self._load()
            for change, _ in waiting:
                points = change(points)
            save_return_points(points, self.path, self._key)
        except UserError as error:
            self.problem = f"{self._key}={self.path}: {count} changes are not written: {error}"
            return []
        for _ in waiting:
            self._changes.popleft()
        self._tried, self.problem = 0, ""
        return [f"{words}, in {self.path}" for _, words in waiting]

    def close(self) -> list[str]:
        """Write what is left; raises `UserError` where it cannot be written."""
        self._tried = 0
        said = self.write()
        if self.problem:
            raise UserError(self.problem)
        return said

    def _change(self, change: Change, words: str) -> None:
        self.points = change(self.points)
        self._changes.append((change, words))

    def _load(self) -> ReturnPoints:
        if self.is_new and not self.path.exists():
            return ReturnPoints(self._robot.name, tuple(entry.name for entry in self._robot.actions))
        return load_return_points(self.path, self._robot.name, self._robot.limits)


def make_return_motion(robot: RobotDescription, point: ReturnPoint) -> ReturnMotion:
    """Return the motion of a robot to a point; it is given up where the robot is far from its line."""
    near = choose_distances(robot.limits, [np.inf] * len(robot.actions), ARRIVED)
    lost = choose_distances(robot.limits, robot.tracking_error, LOST)
    return ReturnMotion(point, robot.limits, ReturnSettings(near, lost))


def list_pose(
    robot: RobotDescription, measured: NDArray[np.float64], commanded: NDArray[np.float64]
) -> Sequence[float | None]:
    """Return where a robot is: what is measured, what was commanded of a position that nothing measures, else None.

    Raises:
        UserError: an entry is not measured at present, or none ever is.
    """
    rows = zip(robot.actions, measured.tolist(), commanded.tolist(), strict=True)
    pose = [here if entry.measured else told if entry.kind == "position" else None for entry, here, told in rows]
    for entry, place in zip(robot.actions, pose, strict=True):
        if place is not None and not np.isfinite(place):
            raise UserError(f"'{entry.name}' is not measured at present")
    if not any(entry.measured for entry in robot.actions):
        raise UserError("nothing measures where the robot is: name what does in its file, actions.<entry>.measured")
    return pose
