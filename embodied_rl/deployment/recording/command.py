"""What `embodied-rl record` does: records a robot in this process, until the time is over or a signal comes."""

import math
import threading
import time
from pathlib import Path

from embodied_rl.deployment.configuration import RecordConfig
from embodied_rl.deployment.recording.bag_writer import BagSettings, check_new
from embodied_rl.deployment.recording.robot_file import write_robot
from embodied_rl.deployment.recording.session import RecorderSettings, record_here
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.system.signals import handle_stop_signals


def record_robot(config: RecordConfig) -> None:
    """Record, and print what became of it.

    Raises:
        UserError: the folder is not new, the robot is unknown, or the disk is full. Unavailable: the extra is missing.
    """
    folder, robot = check_new(Path(config.out)), load_robot(config.robot)
    topics, ended = list_topics(robot), threading.Event()
    until = math.inf

    def ends() -> bool:
        return ended.is_set() or time.monotonic() >= until

    def ready() -> None:
        nonlocal until
        until = math.inf if config.seconds is None else time.monotonic() + config.seconds
        write_robot(robot, folder)
        print(f"Recording {len(topics)} topics of {robot.name} in {folder}; Ctrl-C ends it.", flush=True)

    say = lambda line: print(line, flush=True)  # noqa: E731
    with handle_stop_signals(lambda *_: ended.set()):
        report = record_here(topics, folder, make_settings(config), None, ends, say, ready)
    for line in report.list_lines():
        print(line)


def make_settings(config: RecordConfig) -> RecorderSettings:
    """Return a recorder's settings as the configuration says them."""
    bag = BagSettings(config.split_mb * 2**20, config.split_minutes * 60, config.compression)
    return RecorderSettings(bag, config.queue_mb * 2**20, config.transport, config.silent)
