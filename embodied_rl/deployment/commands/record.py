"""`embodied-rl record`: the topics of a robot, its operator and the bridge, written as MCAP."""

import math
import threading
import time
from pathlib import Path

from embodied_rl.deployment.configuration import RecordConfig
from embodied_rl.deployment.recording.bag_writer import RecorderSettings, check_new
from embodied_rl.deployment.recording.recorder import record_topics
from embodied_rl.deployment.recording.recording_folder import recover_recording, write_description
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.system.atomic_write import check_folder
from embodied_rl.system.signals import handle_stop_signals


def run(config: RecordConfig) -> None:
    """Record until the time is over or a stop signal, or recover an unfinished recording.

    Raises:
        UserError: the folder is not new, the robot is unknown, or the disk is full. Unavailable: the extra is missing.
    """
    check_folder(config.out, "out")
    if config.recover is None:
        return record_robot(config)
    count = recover_recording(Path(config.recover), Path(config.out), Messages(read_environment().distro))
    print(f"{count} messages of {config.recover} recovered to {config.out}")


def record_robot(config: RecordConfig) -> None:
    """Record a robot in this process, and print the report; raises as `run`."""
    folder, robot = check_new(Path(config.out)), load_robot(config.robot)
    topics, ended = list_topics(robot), threading.Event()
    until = math.inf

    def ready() -> None:
        nonlocal until
        until = math.inf if config.seconds is None else time.monotonic() + config.seconds
        write_description(robot, folder)
        print(f"Recording {len(topics)} topics of {robot.name} in {folder}; Ctrl-C ends it.", flush=True)

    stops = lambda: ended.is_set() or time.monotonic() >= until  # noqa: E731
    say = lambda line: print(line, flush=True)  # noqa: E731
    settings = RecorderSettings(
        config.split_mb * 2**20, config.split_minutes * 60, config.compression, config.queue_mb * 2**20,
        config.transport, config.silent,
    )  # fmt: skip
    with handle_stop_signals(lambda *_: ended.set()):
        report = record_topics(topics, folder, settings, None, stops, say, ready)
    for line in report.list_lines():
        print(line)


def check_start(config: RecordConfig) -> list[tuple[str, str]]:
    """Check robot and folder for a dry run; return what would be recorded."""
    check_folder(config.out, "out")
    check_new(Path(config.out))
    messages = Messages(read_environment().distro)
    topics = list_topics(load_robot(config.robot))
    return [(topic.name, messages.find_class(topic.type_name).__msgtype__) for topic in topics]
