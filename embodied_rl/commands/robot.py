"""`embodied-rl robot`: a simulated robot as a node of ROS 2."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.evaluate.video import SIZE, Recording, tile_recordings, write_mp4
from embodied_rl.interfaces.sim import Array
from embodied_rl.schema import RobotConfig
from embodied_rl.simulated_robot.running import FilmedEpisode, check_robot, run_robot
from embodied_rl.system.atomic_write import check_writable


def run(config: RobotConfig) -> None:
    """Simulate the robot until a signal, or the last of its episodes, then write the film.

    Raises:
        UserError: the robot cannot be simulated.
    """
    if config.film is not None:
        check_writable(config.film, "film")
    filmed = run_robot(config)
    if config.film is None:
        return
    if not filmed:
        print("No episode has ended: there is no film.")
        return
    write_film(config.film, filmed, load_robot(config.robot).control_hz)
    print(f"Video: {config.film}")


def check_start(config: RobotConfig) -> list[tuple[str, str]]:
    """Check for a dry run; return what is simulated."""
    description = check_robot(config)
    return [
        ("robot", f"{description.name}: {len(description.topics)} topics, {description.control_hz:g} actions a second")
    ]


def write_film(path: Path, filmed: Sequence[FilmedEpisode], control_hz: float) -> None:
    """Write a film in which all episodes play side by side."""

    def enlarge(picture: Array) -> Array:
        return np.asarray(Image.fromarray(picture).resize((SIZE, SIZE), Image.Resampling.NEAREST))

    recordings = [
        Recording(each.episode, each.instruction, [enlarge(one) for one in each.pictures], each.success)
        for each in filmed
    ]
    write_mp4(path, tile_recordings(recordings, control_hz), control_hz)
