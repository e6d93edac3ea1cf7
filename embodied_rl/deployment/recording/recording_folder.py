"""A recording as a folder: its files in their order, their messages decoded, and what is wrong with it in words."""

import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from embodied_rl.deployment.recording.bag_metadata import METADATA
from embodied_rl.deployment.recording.bag_writer import BagSettings, BagWriter
from embodied_rl.deployment.recording.bounded_queue import Arrival
from embodied_rl.deployment.recording.mcap_reader import McapFile, RecordedChannel, RecordedMessage, RecordingError
from embodied_rl.deployment.recording.robot_file import read_robot, write_robot
from embodied_rl.deployment.recording.sqlite_reader import SqliteFile
from embodied_rl.deployment.recording.topics import RecordedTopic, merge_topics
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.names import check_topic
from embodied_rl.system.untrusted_files import name_file

MOST_FILES = 10_000
SUFFIXES = (".mcap", ".db3")


class Recording:
    """A recording that is read: a folder of MCAP files, ours or rosbag2's, or of its SQLite files, or one such file.

    Args:
        place: the folder or the file.

    Attributes:
        messages: the types of messages.
        cut_off: files that end early, known once they have been read.

    Raises:
        RecordingError: there is no recording. Unavailable: the extra ros2 is missing.
    """

    def __init__(self, place: Path, messages: Messages) -> None:
        self.place, self.cut_off = place, set[Path]()
        self.messages, self._checked = messages, set[RecordedChannel]()
        self.files = [place] if place.is_file() else list_files(place)

    def read(self, topics: Collection[str] | None = None) -> Iterator[RecordedMessage]:
        """Yield the messages of these topics, of all by default, in the order in which they were recorded.

        Raises:
            RecordingError: a file cannot be read, is damaged, or holds what is not CDR or another definition of a type.
        """
        for path in self.files:
            file = SqliteFile(path) if path.suffix == ".db3" else McapFile(path)
            for message in file.messages(topics):
                self._check(message.channel, path)
                yield message
            if not file.complete:
                self.cut_off.add(path)

    def decode(self, message: RecordedMessage) -> Any:
        """Return a message's content.

        Raises:
            MessageError: its bytes are no message of its type. UserError: an unknown type.
        """
        return self.messages.decode(message.channel.type_name, message.raw)

    def _check(self, channel: RecordedChannel, path: Path) -> None:
        if channel in self._checked:
            return
        if channel.encoding != "cdr":
            raise RecordingError(
                f"{path}: {channel.topic[:200]!r} is encoded as {channel.encoding[:20]!r}, not as cdr."
            )
        with name_file(path):
            ours = self.messages.hash_type(channel.type_name)
        if channel.type_hash and ours and channel.type_hash != ours:
            raise RecordingError(
                f"{path}: {check_topic(channel.topic)} is a {channel.type_name} of another definition than that of "
                f"ROS 2 {self.messages.distro}. Set ROS_DISTRO to the release that it was recorded with."
            )
        self._checked.add(channel)


def list_files(folder: Path) -> list[Path]:
    """Return the MCAP and SQLite files of a folder, by the number in their names; metadata.yaml is not followed.

    Raises:
        RecordingError: there are none, or other files that hold messages.
    """
    if not folder.is_dir():
        raise RecordingError(f"{folder} is not there: give the folder of a recording.")
    files = [path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink()]
    if not files:
        other = next((path.name for path in folder.iterdir() if path.suffix in (".zstd", ".bag")), None)
        remedy = f"it holds {other}: convert it with `ros2 bag convert` to MCAP files"
        why = remedy if other else "it holds no .mcap and no .db3 file"
        raise RecordingError(f"{folder} is no recording that can be read: {why}.")
    if len(files) > MOST_FILES:
        raise RecordingError(f"{folder} holds {len(files)} files; {MOST_FILES} at most are read.")
    return sorted(files, key=lambda path: (_number(path), path.name))


def _number(path: Path) -> int:
    found = re.search(r"_([0-9]{1,9})$", path.stem)
    return int(found[1]) if found else -1


def recover_recording(folder: Path, out: Path, messages: Messages) -> int:
    """Write what can be read of a recording that was cut off into a new, whole one; return the number of messages.

    The folder itself stays as it is.

    Raises:
        RecordingError: it is whole already, cannot be read, or holds nothing. UserError: `out` is not new.
    """
    if (folder / METADATA).exists():
        raise RecordingError(f"{folder} was finished: it has a {METADATA}, and can be read as it is.")
    recording, kinds = Recording(folder, messages), set[tuple[str, str]]()
    for message in recording.read():
        kinds.add((message.channel.topic, message.channel.type_name))
    if not kinds:
        raise RecordingError(f"{folder} holds no whole chunk: nothing can be recovered.")
    settings = BagSettings(split_s=math.inf)  # times that jump make no files
    topics = merge_topics(RecordedTopic(check_topic(name), kind) for name, kind in kinds)
    positions, bag, count = (
        {topic.name: n for n, topic in enumerate(topics)},
        BagWriter(out, topics, messages, settings),
        0,
    )
    for message in recording.read():
        bag.write(Arrival(positions[message.channel.topic], message.raw, message.received_ns, message.source_ns))
        count += 1
    bag.finish({"recovered": [path.name for path in recording.cut_off]})
    robot = read_robot(folder, messages)
    if robot is not None:
        write_robot(robot, out)
    return count
