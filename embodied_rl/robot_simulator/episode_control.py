"""Start and end of a robot's episodes: by a simulated robot over topics, by a human, and at return points."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.bridge.motion_files import open_return_points
from embodied_rl.deployment.bridge.operator_topics import OperatorListener
from embodied_rl.deployment.execution.tick import Mode, Motion, OperatorInput
from embodied_rl.deployment.robots.description import OperatorTopics, RobotDescription
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.system.terminal import tell_person
from embodied_rl.system.untrusted_files import make_printable

TEXT = "std_msgs/msg/String"
LONGEST = 4096
"""Maximum characters of an outcome message."""
LOOKING_S = 0.02


@dataclass(frozen=True)
class EpisodeEnd:
    """How an episode ended. `failure` is a short text, empty for a success; `truncated`: nothing but time ended it."""

    success: bool
    failure: str
    truncated: bool
    reward: float


class EpisodeOperator(OperatorListener):
    """The operator's topics, with the last label of the episode.

    Attributes:
        label: last label since the episode began; empty if there is none.
    """

    label = ""

    def read(self, mode: Mode, commanded: NDArray[np.float64]) -> OperatorInput:
        said = super().read(mode, commanded)
        self.label = said.label or self.label
        return said

    def find_end(self) -> EpisodeEnd | None:
        """Return the end of the episode by the operator's label, or None; an aborted episode counts as truncated."""
        if not self.label:
            return None
        success, aborted = self.label == "success", self.label == "abort"
        failure = "" if success else "aborted by the operator" if aborted else "failure, says the operator"
        return EpisodeEnd(success, failure, aborted, float(success))


class SimulatedEpisodes:
    """Requests episodes from a simulated robot over `topics`, which have reset and outcome."""

    def __init__(self, node: Transport, topics: OperatorTopics) -> None:
        self.end: EpisodeEnd | None = None
        self._index = -1
        self._make = node.messages.make
        self.publisher = node.create_publisher(topics.reset, TEXT, "latched")

        def on_outcome(message: Any, received_ns: int, source_ns: int) -> None:
            self.end = read_end(str(message.data), self._index) or self.end

        node.create_subscription(topics.outcome, TEXT, "latched", on_outcome)

    def ask(self, episode: Episode) -> None:
        """Request an episode."""
        self.end, self._index = None, episode.index
        said = {
            "index": episode.index, "task": episode.task, "seed": episode.seed,
            "initial_state": episode.initial_state, "split": episode.split,
        }  # fmt: skip
        self.publisher.publish(self._make(TEXT, data=json.dumps(said)))


def read_end(text: str, index: int) -> EpisodeEnd | None:
    """Parse an outcome message; return None for another episode or an invalid message."""
    try:
        said = json.loads(text[:LONGEST])
        if said["index"] != index:
            return None
        success, truncated = said["success"], said["truncated"]
        failure, reward = said["failure"], float(said["reward"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    if type(success) is not bool or type(truncated) is not bool or type(failure) is not str or not np.isfinite(reward):
        return None
    return EpisodeEnd(success, failure[:100], truncated, reward)


class AttendedEpisodes:
    """Asks a human to set up the scene of each episode of a real robot, and waits.

    The human confirms with the device's button `run`, or by pressing the dead man's switch, within `wait_s` seconds.

    Raises:
        UserError: the robot has no input to confirm the scene, or to label an episode.
    """

    def __init__(self, topics: OperatorTopics, operator: EpisodeOperator, wait_s: float) -> None:
        device = topics.device
        if device.run is None and device.deadman is None and not topics.deadman:
            raise UserError(
                "sim=robot: there is no input to confirm that the scene is set up. Add operator.device.run, a button, "
                "or operator.deadman to the robot's file.",
                code="operator-missing",
            )
        if not topics.label and (device.success is None or device.failure is None):
            raise UserError(
                "sim=robot: there is no input to label episodes. Add operator.label, or the buttons "
                "operator.device.success and failure, to the robot's file.",
                code="operator-missing",
            )
        self._operator, self._wait_s, self._has_button = operator, wait_s, device.run is not None

    def wait(self, words: str) -> None:
        """Ask for a scene, and wait until it is ready.

        Operator inputs are not consumed, because the control loop may read them at the same time.

        Raises:
            UserError: no confirmation in time.
        """
        how = "press the button for run" if self._has_button else "take hold of the dead man's switch"
        tell_person(f"Set up the scene for: {make_printable(words)}. Then {how}.")
        pressed, held = self._operator.count_presses("run"), self._operator.holds()
        until = time.monotonic() + self._wait_s
        while time.monotonic() < until:
            before, held = held, self._operator.holds()
            if self._operator.count_presses("run") > pressed if self._has_button else held and not before:
                return
            time.sleep(LOOKING_S)
        raise UserError(
            f"The scene was not set up within {self._wait_s:g} s. Give more time, sim.attend=<seconds>, or go on with "
            "resume.",
            code="scene-not-set-up",
        )


class EpisodeReturns:
    """Return points at which the episodes of a robot begin. Their file, `path`, counts the outcomes.

    Raises:
        UserError: the file is missing, has no point, or belongs to another robot.
    """

    def __init__(self, path: str, robot: RobotDescription) -> None:
        self._file = open_return_points(path, robot, "sim.return_points")
        if not self._file.points.points:
            raise UserError(
                f"sim.return_points={path} has no point. Store some: embodied-rl bridge return_points=…",
                code="return-points-empty",
            )
        self._began_at: str | None = None

    def begin(self, episode: Episode, words: str, follow: Callable[[Motion], str]) -> None:
        """Move the robot by `follow` to a return point of the task, sampled with the episode's seed.

        If it does not arrive, the episode begins where the robot is, and is not counted.

        Raises:
            UserError: the task has no point. RunFailed: the robot does nothing.
        """
        point = self._file.points.select(words).choose(episode.seed, 0)
        motion = self._file.make_motion(point)
        said = follow(motion)
        self._began_at = point.name if motion.arrived else None
        if not motion.arrived:
            tell_person(f"Episode {episode.index} does not begin at '{point.name}': {said}.")

    def end(self, end: EpisodeEnd, *, aborted: bool) -> None:
        """Count the outcome unless the episode was aborted. Raises `UserError` if the file cannot be written."""
        name, self._began_at = self._began_at, None
        if name is not None and not aborted:
            self._file.count(name, failed=not end.success)
            self._file.close()
