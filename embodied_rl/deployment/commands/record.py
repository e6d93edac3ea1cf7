"""`embodied-rl record`: the topics of a robot, its operator and the bridge, written as MCAP."""

from pathlib import Path

from embodied_rl.deployment.configuration import RecordConfig
from embodied_rl.deployment.recording.bag_writer import check_new
from embodied_rl.deployment.recording.command import record_robot
from embodied_rl.deployment.recording.recording_folder import recover_recording
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.system.atomic_write import check_folder


def run(config: RecordConfig) -> None:
    """Record until the time is over or a signal comes; or recover a recording that was cut off.

    Raises:
        UserError: the folder is not new, the robot is unknown, or the disk is full. Unavailable: the extra is missing.
    """
    check_folder(config.out, "out")
    if config.recover is None:
        return record_robot(config)
    count = recover_recording(Path(config.recover), Path(config.out), Messages(read_environment().distro))
    print(f"{count} messages of {config.recover} recovered to {config.out}")


def check_start(config: RecordConfig) -> list[tuple[str, str]]:
    """Check robot and folder for a dry run; return what would be recorded."""
    check_folder(config.out, "out")
    check_new(Path(config.out))
    messages = Messages(read_environment().distro)
    topics = list_topics(load_robot(config.robot))
    return [(topic.name, messages.find_class(topic.type_name).__msgtype__) for topic in topics]
