"""The robot's description in the folder of a recording, so that reading it back needs nothing else."""

from pathlib import Path

from embodied_rl.config.freeze import freeze_config, to_yaml
from embodied_rl.deployment.robots.consistency import check_consistency, check_messages
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.untrusted_files import check_inside, name_file

ROBOT = "description.yaml"


def write_robot(robot: RobotDescription, folder: Path) -> None:
    """Write the description of a robot beside its recording; raise `StorageError` where that cannot be."""
    write_text(folder / ROBOT, to_yaml(robot), "out")


def read_robot(folder: Path, messages: Messages) -> RobotDescription | None:
    """Return the description in a recording's folder, None where there is none. It is data, whoever wrote it.

    Raises:
        UserError: the file is damaged, leads out of the folder, or has keys or values that a description does not
            have, or types and fields that `messages` do not.
    """
    file = folder / ROBOT
    if not file.exists():
        return None
    with name_file(file):
        check_inside(folder, file)
        robot = freeze_config(RobotDescription, read_strict_yaml(file))
        check_consistency(robot)
        check_messages(robot, messages)
    return robot
