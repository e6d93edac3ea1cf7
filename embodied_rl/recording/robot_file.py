"""The robot's description in the folder of a recording, so that reading it back needs nothing else."""

from pathlib import Path

from embodied_rl.config.freeze import freeze_config, read_config, to_yaml
from embodied_rl.robots.consistency import check_consistency
from embodied_rl.robots.description import RobotDescription
from embodied_rl.runs.atomic_write import write_text
from embodied_rl.runs.untrusted_files import name_file

ROBOT = "description.yaml"


def write_robot(robot: RobotDescription, folder: Path) -> None:
    """Write the description of a robot beside its recording; raise `StorageError` where that cannot be."""
    write_text(folder / ROBOT, to_yaml(robot), "out")


def read_robot(folder: Path) -> RobotDescription | None:
    """Return the description in a recording's folder, None where there is none. It is data, whoever wrote it.

    Raises:
        UserError: the file is damaged, or has keys or values that a description does not have.
    """
    file = folder / ROBOT
    if not file.exists():
        return None
    with name_file(file):
        robot = freeze_config(RobotDescription, read_config(file))
        check_consistency(robot)
    return robot
