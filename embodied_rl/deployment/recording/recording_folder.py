"""Read and recover recordings: folders of MCAP files or of SQLite files of rosbag2, and the robot's description."""

import math
import re
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config, to_yaml
from embodied_rl.deployment.recording.bag_writer import METADATA, Arrival, BagWriter, RecorderSettings
from embodied_rl.deployment.recording.mcap_reader import (
    MAX_RECORD_BYTES,
    McapFile,
    RecordedChannel,
    RecordedMessage,
    RecordingError,
)
from embodied_rl.deployment.recording.topics import RecordedTopic, merge_topics
from embodied_rl.deployment.robots.consistency import check_consistency, check_messages
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.names import check_topic
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.untrusted_files import check_inside, name_file

MAX_FILES = 10_000
DESCRIPTION = "description.yaml"


class SqliteFile:
    """One untrusted file of the SQLite storage of rosbag2, the default until Humble.

    It has the interface of `McapFile`, but stores only the times of receiving.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.complete = path, False

    def messages(self, topics: Collection[str] | None = None) -> Iterator[RecordedMessage]:
        """Yield the messages of these topics, by default of all, in the order of their times.

        Raises:
            RecordingError: the file cannot be read, or is not a recording.
        """
        uri = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as database:
                database.execute("PRAGMA trusted_schema = OFF")
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RECORD_BYTES)
                tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('topics', 'messages')"
                if database.execute(tables).fetchone() != (2,):
                    raise RecordingError(
                        f"{self.path} is not a recording: it lacks the tables topics and messages.",
                        code="recording-damaged",
                    )
                yield from self._read_tables(database, topics)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise RecordingError(
                f"{self.path} is damaged: {error}. Use another copy of it.", code="recording-damaged"
            ) from error
        self.complete = True

    def _read_tables(self, database: sqlite3.Connection, topics: Collection[str] | None) -> Iterator[RecordedMessage]:
        rows = database.execute("SELECT id, name, type, serialization_format FROM topics")
        channels = {number: RecordedChannel(str(name), str(kind), str(form), "") for number, name, kind, form in rows}
        wanted = [number for number, each in channels.items() if topics is None or each.topic in topics]
        marks = ",".join("?" * len(wanted))
        query = f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) ORDER BY timestamp, id"
        for number, time_ns, data in database.execute(query, wanted):
            if type(time_ns) is not int or time_ns < 0 or type(data) is not bytes:
                topic = channels[number].topic[:100]
                raise RecordingError(f"{self.path} is damaged: a message of {topic!r}.", code="recording-damaged")
            yield RecordedMessage(channels[number], data, time_ns, time_ns)


class Recording:
    """A recording: a folder of MCAP or SQLite files of this program or of rosbag2, or one such file.

    Attributes:
        place: the folder or the file.
        cut_off: truncated files among those that have been read.

    Raises:
        RecordingError: the recording is missing. Unavailable: a package is missing.
    """

    def __init__(self, place: Path, messages: Messages) -> None:
        self.place, self.cut_off = place, set[Path]()
        self.messages, self._checked = messages, set[RecordedChannel]()
        self.files = [place] if place.is_file() else list_files(place)

    def read(self, topics: Collection[str] | None = None) -> Iterator[RecordedMessage]:
        """Yield the messages of these topics, by default of all, in the order of recording.

        Raises:
            RecordingError: a file cannot be read, is damaged, is not in CDR, or has another definition of a type.
        """
        for path in self.files:
            file = SqliteFile(path) if path.suffix == ".db3" else McapFile(path)
            for message in file.messages(topics):
                if message.channel not in self._checked:
                    self._check(message.channel, path)
                yield message
            if not file.complete:
                self.cut_off.add(path)

    def _check(self, channel: RecordedChannel, path: Path) -> None:
        if channel.encoding != "cdr":
            raise RecordingError(
                f"{path}: {channel.topic[:200]!r} is encoded as {channel.encoding[:20]!r}, not as cdr.",
                code="recording-encoding-unsupported",
            )
        with name_file(path):
            ours = self.messages.hash_type(channel.type_name)
        if channel.type_hash and ours and channel.type_hash != ours:
            raise RecordingError(
                f"{path}: the type {channel.type_name} of {check_topic(channel.topic)} is defined differently in ROS 2 "
                f"{self.messages.distro}. Set ROS_DISTRO to the release that it was recorded with.",
                code="recording-of-another-release",
            )
        self._checked.add(channel)

    def decode(self, message: RecordedMessage) -> Any:
        """Decode a message; raise `MessageError` if its bytes do not fit its type, `UserError` for an unknown type."""
        return self.messages.decode(message.channel.type_name, message.raw)


def list_files(folder: Path) -> list[Path]:
    """Return the MCAP and SQLite files of a folder, sorted by the number in their names; metadata.yaml is not read.

    Raises:
        RecordingError: there are none, or too many.
    """
    if not folder.is_dir():
        raise RecordingError(f"{folder} does not exist: give the folder of a recording.", code="recording-missing")
    files = [
        path
        for path in folder.iterdir()
        if path.suffix in (".mcap", ".db3") and path.is_file() and not path.is_symlink()
    ]
    if not files:
        other = next((path.name for path in folder.iterdir() if path.suffix in (".zstd", ".bag")), None)
        remedy = f"convert {other} with `ros2 bag convert` to MCAP files"
        why = remedy if other else "it has no .mcap and no .db3 file"
        raise RecordingError(f"{folder} is not a readable recording: {why}.", code="recording-missing")
    if len(files) > MAX_FILES:
        raise RecordingError(
            f"{folder} holds {len(files)} files; at most {MAX_FILES} are read.", code="recording-too-large"
        )

    numbers = {path: re.search(r"_([0-9]{1,9})$", path.stem) for path in files}
    return sorted(files, key=lambda path: (int(found[1]) if (found := numbers[path]) else -1, path.name))


def recover_recording(folder: Path, out: Path, messages: Messages) -> int:
    """Write the readable messages of an unfinished recording to a new one; return their number.

    Raises:
        RecordingError: it is finished, cannot be read, or is empty. UserError: `out` is not new.
    """
    if (folder / METADATA).exists():
        raise RecordingError(
            f"{folder} is finished: it has a {METADATA}, and needs no recovery.", code="recording-finished"
        )
    recording, kinds = Recording(folder, messages), set[tuple[str, str]]()
    for message in recording.read():
        kinds.add((message.channel.topic, message.channel.type_name))
    if not kinds:
        raise RecordingError(f"{folder} holds no whole chunk: nothing can be recovered.", code="recording-empty")
    settings = RecorderSettings(split_s=math.inf)  # jumps of time must not start new files
    topics = merge_topics(RecordedTopic(check_topic(name), kind) for name, kind in kinds)
    positions, count = {topic.name: n for n, topic in enumerate(topics)}, 0
    bag = BagWriter(out, topics, messages, settings)
    for message in recording.read():
        bag.write(Arrival(positions[message.channel.topic], message.raw, message.received_ns, message.source_ns))
        count += 1
    bag.finish({"recovered": [path.name for path in recording.cut_off]})
    robot = read_description(folder, messages)
    if robot is not None:
        write_description(robot, out)
    return count


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
