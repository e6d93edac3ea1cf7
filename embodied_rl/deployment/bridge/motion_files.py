"""Files of return points and demonstrations, checked before the robot moves."""

import math
from pathlib import Path
from random import SystemRandom

import numpy as np

from embodied_rl.deployment.bridge.motions import MotionManager
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.execution.demonstration import (
    Demonstration,
    Replay,
    check_recorded_body,
    make_demonstration,
    read_demonstration,
)
from embodied_rl.deployment.execution.return_points import ReturnMotion, choose_distances, make_return_point
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.return_file import LOST, ReturnFile, make_return_motion
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import make_printable, name_file

NEAR = 0.02
"""Largest distance of a replay's start from the recorded start, as a share of the range of an entry."""


def make_motion_manager(config: BridgeConfig, robot: RobotDescription) -> MotionManager:
    """Return the manager of the configured returns and replays; raises UserError: a file or a button is unusable."""
    file, replay, start = None, None, None
    if config.return_points is not None:
        _check_button(robot, "return_points", "go_back")
        file = open_return_points(config.return_points, robot)
    if config.replay is not None:
        _check_button(robot, "replay", "replay")
        replay, start = make_replay(config, robot)
    elif config.replay_episode is not None:
        raise UserError(
            f"replay_episode={config.replay_episode} needs replay=<folder of a recording>. Leave it out.",
            code="replay-episode-without-recording",
        )
    seed = SystemRandom().getrandbits(32) if config.seed is None else config.seed
    return MotionManager(file, replay, start, seed)


def open_return_points(name: str, robot: RobotDescription, key: str = "return_points") -> ReturnFile:
    """Return the return points of a robot; raises `UserError`, as `ReturnFile`, or if there can never be a point."""
    file = ReturnFile(Path(name).expanduser(), robot, key)
    if not file.points.points and robot.operator.device.store is None:
        raise UserError(
            f"{key}={name} holds no point, and none could be stored: set operator.device.store in the robot's file to "
            "a button, or correct the path.",
            code="return-points-empty",
        )
    return file


def make_replay(config: BridgeConfig, robot: RobotDescription) -> tuple[Replay, ReturnMotion]:
    """Return the replay of a demonstration, and the motion to its start; raises UserError."""
    assert config.replay is not None, "the caller checked"
    path = Path(config.replay).expanduser()
    try:
        demonstration = load_demonstration(path, config.replay_episode, robot)
    except UserError as error:
        raise UserError(f"replay: {error}", code=error.code) from None
    nowhere = [math.inf] * len(robot.actions)
    lost = choose_distances(robot.limits, robot.tracking_error, LOST)
    near = choose_distances(robot.limits, nowhere, NEAR)
    period = 1 / (robot.control_hz if config.lockstep else robot.command_hz)
    pose = [None if math.isnan(place) else place for place in demonstration.measured[0].tolist()]
    point = make_return_point(f"the start of {path.name}", "", pose, robot.limits)
    return Replay(demonstration, robot.limits, lost, near, period, path.name), make_return_motion(robot, point)


def load_demonstration(path: Path, episode: int | None, robot: RobotDescription) -> Demonstration:
    """Return a demonstration: an episode's file of `collect`, or an episode of a recording's folder; raises UserError.

    Args:
        path: of the file or folder, untrusted. episode: its index in a recording; None: the only one.
    """
    names = [entry.name for entry in robot.state]
    measured_by = tuple(names.index(entry.measured) if entry.measured else -1 for entry in robot.actions)
    if (path / "format.json").is_file():
        raise UserError(
            f"{path} is a replay storage for training. Give an episode's .npz file of embodied-rl collect, or the "
            "folder of the recording that it was made of.",
            code="demonstration-is-replay-storage",
        )
    if path.is_dir():
        return _load_recorded(path, episode, robot, measured_by)
    if episode is not None:
        raise UserError(
            f"replay_episode={episode}: {path} is one episode. Leave replay_episode out.",
            code="replay-episode-without-recording",
        )
    with name_file(path):
        return read_demonstration(path, robot.body, measured_by)


def _load_recorded(
    folder: Path, episode: int | None, robot: RobotDescription, measured_by: tuple[int, ...]
) -> Demonstration:
    from embodied_rl.deployment.recording.conversion import Conversion  # imports rosbags
    from embodied_rl.deployment.recording.recording_folder import read_description
    from embodied_rl.deployment.transport.messages import Messages

    messages = Messages()
    recorded = read_description(folder, messages)
    if recorded is None:
        raise UserError(
            f"{folder} has no description of the recorded robot, without which it is not replayed.",
            code="recording-robot-missing",
        )
    check_recorded_body(recorded.body, robot.body, str(folder))
    check_recorded_entries(recorded, robot, str(folder))
    found = Conversion.open(folder, messages, recorded, aborted=True)
    chosen = [each for each in found.episodes if episode in (None, each.index)]
    if len(chosen) != 1:
        known = ", ".join(f"{each.index} ({each.instruction or 'no task'})" for each in found.episodes[:24])
        words = make_printable(known)
        raise UserError(f"{folder}: set replay_episode=<number> to one of {words}.", code="replay-episode-unknown")
    found.episodes = chosen
    parts = list(found.read_parts())
    if len(parts) != 1 or len(parts[0].steps) != len(chosen[0].steps):
        why = "; ".join(found.omissions) or "steps are missing"
        raise UserError(
            f"{folder}: episode {chosen[0].index} is incomplete: {why}. Choose another one.",
            code="replay-episode-incomplete",
        )
    steps = parts[0].steps
    times = np.arange(len(steps) + 1) / robot.control_hz  # not the recording's clock, which may be lockstep
    actions = np.array([step.executed for step in steps], np.float64)
    state = np.concatenate([step.observation.state for step in steps]).astype(np.float64)
    with name_file(folder):
        return make_demonstration(times, actions, state, measured_by)


def check_recorded_entries(recorded: RobotDescription, robot: RobotDescription, where: str) -> None:
    """Raise UserError unless units, kinds and measured entries are those of the recording."""
    mine, theirs = ([*each.actions, *each.state] for each in (robot, recorded))
    for ours, other in zip(mine, theirs, strict=True):
        for name in ("unit", "kind", "measured"):
            if (here := getattr(ours, name, "")) != (there := getattr(other, name, "")):
                raise UserError(
                    f"{where} is of another robot: {name} of '{ours.name}' is '{there}' there, '{here}' here. Choose a "
                    "demonstration of this robot, or the robot's file that it was recorded with.",
                    code="demonstration-of-another-robot",
                )


def _check_button(robot: RobotDescription, key: str, button: str) -> None:
    if getattr(robot.operator.device, button) is None:
        raise UserError(
            f"{key}: set operator.device.{button} in the file of {robot.name} to the button that requests the motion.",
            code="operator-button-missing",
        )
