"""File of a robot's return points: the control loop changes the points, another thread writes the file."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.return_points import (
    ReturnMotion,
    ReturnPoint,
    ReturnPoints,
    ReturnSettings,
    choose_distances,
    load_return_points,
    make_return_point,
    save_return_points,
)
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.errors import UserError

Change = Callable[[ReturnPoints], ReturnPoints]
ARRIVED, LOST = 0.01, 0.25
"""Shares of the range of an entry: distance at which a robot has arrived, and distance from the planned motion at which
it is lost, without a tracking_error."""


class ReturnFile:
    """Return points of one robot and their file.

    Args:
        path: of the file; created with the first point. key: of the configuration that named it.

    Attributes:
        points: with the changes that are not written yet.
        problem: why changes are not written; empty if they are.

    Raises:
        UserError: the file is damaged or of another robot, or its folder is missing.
    """

    def __init__(self, path: Path, robot: RobotDescription, key: str = "return_points") -> None:
        self.path, self.problem, self._robot, self._key = path, "", robot, key
        self.is_new = not path.exists()
        if not path.parent.is_dir():
            raise UserError(
                f"{key}={path}: the folder {path.parent} is missing. Create it, or correct the path.",
                code="folder-missing",
            )
        try:
            self.points = self._load()
        except UserError as error:
            raise UserError(f"{key}: {error}", code=error.code) from None
        self._changes, self._tried = deque[tuple[Change, str]](), 0

    def store(self, measured: NDArray[np.float64], commanded: NDArray[np.float64], words: str) -> ReturnPoint:
        """Add the present place, [A] each, as a point of the task `words`; raises `UserError` if it is invalid."""
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
        return make_return_motion(self._robot, point)

    def write(self) -> list[str]:
        """Write the changes since the last call, and return a line about each.

        Changes that other programs made to the file are kept. After a failure `problem` has the reason, and the
        changes are written with the next one.
        """
        count = len(self._changes)
        if count == self._tried:
            return []
        pending, self._tried = list(islice(self._changes, count)), count
        try:
            points = self._load()
            for change, _ in pending:
                points = change(points)
            save_return_points(points, self.path, self._key)
        except UserError as error:
            self.problem = f"{self._key}={self.path}: {count} changes are not written: {error}"
            return []
        for _ in pending:
            self._changes.popleft()
        self._tried, self.problem = 0, ""
        return [f"{words}, in {self.path}" for _, words in pending]

    def close(self) -> list[str]:
        """Write the remaining changes; raises `UserError` if that fails."""
        self._tried = 0
        said = self.write()
        if self.problem:
            raise UserError(self.problem, code="return-points-not-written")
        return said

    def _change(self, change: Change, words: str) -> None:
        self.points = change(self.points)
        self._changes.append((change, words))

    def _load(self) -> ReturnPoints:
        if self.is_new and not self.path.exists():
            return ReturnPoints(self._robot.name, tuple(entry.name for entry in self._robot.actions))
        return load_return_points(self.path, self._robot.name, self._robot.limits)


def make_return_motion(robot: RobotDescription, point: ReturnPoint) -> ReturnMotion:
    """Return the motion of a robot to a point, which is aborted if the robot is far from the planned motion."""
    near = choose_distances(robot.limits, [np.inf] * len(robot.actions), ARRIVED)
    lost = choose_distances(robot.limits, robot.tracking_error, LOST)
    return ReturnMotion(point, robot.limits, ReturnSettings(near, lost))


def list_pose(
    robot: RobotDescription, measured: NDArray[np.float64], commanded: NDArray[np.float64]
) -> Sequence[float | None]:
    """Return the pose: measured entries, the last command of unmeasured positions, and None for other entries.

    Raises:
        UserError: a measurement is missing, or the robot has no measured entries.
    """
    rows = zip(robot.actions, measured.tolist(), commanded.tolist(), strict=True)
    pose = [at if entry.measured else last if entry.kind == "position" else None for entry, at, last in rows]
    for entry, place in zip(robot.actions, pose, strict=True):
        if place is not None and not np.isfinite(place):
            raise UserError(f"'{entry.name}' is not measured at present", code="robot-position-not-measured")
    if not any(entry.measured for entry in robot.actions):
        raise UserError(
            "no entry of the robot is measured: set actions.<entry>.measured in its file",
            code="robot-position-not-measured",
        )
    return pose
