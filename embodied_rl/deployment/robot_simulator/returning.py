"""Episodes that begin at return points: the robot goes to one before each, and its outcome is counted there."""

from collections.abc import Callable

from embodied_rl.deployment.bridge.motion_files import open_return_points
from embodied_rl.deployment.execution.motion import Motion
from embodied_rl.deployment.robot_simulator.attending import EpisodeEnd
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode


class EpisodeReturns:
    """Where the episodes of a robot begin.

    Args:
        path: of the file of return points. robot: its description.

    Raises:
        UserError: there is no such file, it holds no point, or is not this robot's.
    """

    def __init__(self, path: str, robot: RobotDescription) -> None:
        self._file = open_return_points(path, robot, "sim.return_points")
        if not self._file.points.points:
            raise UserError(f"sim.return_points={path} holds no point. Store some: embodied-rl bridge return_points=…")
        self._began_at: str | None = None

    def begin(self, episode: Episode, words: str, follow: Callable[[Motion], str]) -> None:
        """Let the robot go to a point of the task of these words, drawn by the episode's seed.

        Where it does not arrive the episode begins where it is, and counts for no point.

        Args:
            follow: lets the robot follow a motion to its end, and returns how it ended.

        Raises:
            UserError: the task has no point. RunFailed: the robot does nothing.
        """
        point = self._file.points.select(words).choose(episode.seed, 0)
        motion = self._file.make_motion(point)
        said = follow(motion)
        self._began_at = point.name if motion.arrived else None
        if not motion.arrived:
            print(f"Episode {episode.index} does not begin at '{point.name}': {said}.", flush=True)

    def end(self, end: EpisodeEnd, *, aborted: bool) -> None:
        """Count how an episode ended, unless it was aborted; raises `UserError`: the file cannot be written."""
        name, self._began_at = self._began_at, None
        if name is not None and not aborted:
            self._file.count(name, failed=not end.success)
            self._file.close()
