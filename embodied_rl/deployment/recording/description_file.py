"""The file description.yaml of a recording: the recorded robot's description."""

from pathlib import Path

from embodied_rl.config.freeze import freeze_config, to_yaml
from embodied_rl.deployment.robots.consistency import check_consistency, check_messages
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.untrusted_files import check_inside, name_file

DESCRIPTION = "description.yaml"


def write_description(robot: RobotDescription, folder: Path) -> None:
    """Write a robot's description to a recording's folder; raise `StorageError` if that fails."""
    write_text(folder / DESCRIPTION, to_yaml(robot), "out")


def read_description(folder: Path, messages: Messages) -> RobotDescription | None:
    """Read the description in a recording's folder, which need not be trusted; return None if there is none.

    Raises:
        UserError: the file is damaged, is a link out of the folder, has invalid keys or values, or uses types or fields
            that `messages` lacks.
    """
    file = folder / DESCRIPTION
    if not file.exists():
        return None
    with name_file(file):
        check_inside(folder, file)
        robot = freeze_config(RobotDescription, read_strict_yaml(file))
        check_consistency(robot)
        check_messages(robot, messages)
    return robot
