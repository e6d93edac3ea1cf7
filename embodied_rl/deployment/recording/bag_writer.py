"""Write a recording: a rosbag2 folder of MCAP files, split by size and time.

<folder>/<name>_0.mcap …    profile ros2, messages in CDR, definitions in ros2msg
<folder>/metadata.yaml      written when the recording ends, as rosbag2 of Jazzy does (version 9)
<folder>/description.yaml   of the robot, if known, see `recording_folder`
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from embodied_rl.config.freeze import dump_yaml
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.extras import require
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import explain_errors, make_folder, write_text

METADATA = "metadata.yaml"
CHUNK_BYTES = 2**20
MAX_CHUNK_S = 1.0
"""Time after which a chunk is written. If the recorder is killed, only the unwritten chunk is lost."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A received message: its topic as an index into the recorder's list, CDR bytes, times in nanoseconds."""

    topic: int
    raw: bytes
    received_ns: int
    source_ns: int


@dataclass
class FileCount:
    """Messages of one file by topic, and the times of its first and last message, in nanoseconds since 1970."""

    name: str
    messages: Counter[str] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0

    def add(self, topic: str, time_ns: int) -> None:
        """Count a message."""
        self.first_ns = min(self.first_ns, time_ns) if self.messages else time_ns
        self.last_ns = max(self.last_ns, time_ns)
        self.messages[topic] += 1


@dataclass(frozen=True)
class RecorderSettings:
    """How a recording is made.

    Attributes:
        split_bytes, split_s: size or duration after which a new file is started.
        compression: of chunks. queue_bytes: size of the queue.
        transport: dds or rclpy. silent_s: time after which topics without messages are reported.
    """

    split_bytes: int = 2**30
    split_s: float = 600.0
    compression: Literal["none", "lz4", "zstd"] = "none"
    queue_bytes: int = 256 * 2**20
    transport: str = "dds"
    silent_s: float = 5.0


class BagWriter:
    """Writer of a recording of some topics in a new folder; an `Arrival.topic` is an index into them.

    Raises:
        UserError: the folder holds files, or a type is unknown. StorageError: the folder cannot be created or written.
        Unavailable: the package mcap is missing.
    """

    def __init__(
        self,
        folder: Path,
        topics: Sequence[RecordedTopic],
        messages: Messages,
        settings: RecorderSettings | None = None,
    ) -> None:
        require("mcap", "recording")
        self.folder, self.topics, self.files = check_new(folder), tuple(topics), list[FileCount]()
        self._messages, self._settings = messages, settings or RecorderSettings()
        self._definitions = {topic.type_name: messages.define_type(topic.type_name) for topic in self.topics}
        make_folder(folder, "out")
        with explain_errors(folder, "out"):
            self._open_next()

    def write(self, arrival: Arrival) -> None:
        """Write a message; start a new file first if the current one is full; errors as in `explain_errors`."""
        with explain_errors(self.folder, "out"):
            file, split_ns = self.files[-1], self._settings.split_s * 1e9
            old = arrival.received_ns - file.first_ns >= split_ns
            if file.messages and (old or self._file.tell() >= self._settings.split_bytes):
                self._finish_file({})
                self._open_next()
            self._writer.add_message(
                self._channels[arrival.topic], arrival.received_ns, arrival.raw, arrival.source_ns,
                self._numbers[arrival.topic] & 0xFFFFFFFF,
            )  # fmt: skip
            self._numbers[arrival.topic] += 1
            self.files[-1].add(self.topics[arrival.topic].name, arrival.received_ns)
            self.close_chunk(MAX_CHUNK_S)

    def close_chunk(self, age_s: float = 0.0) -> None:
        """Write the current chunk to the file if it is older than `age_s`; it then survives a kill of this process."""
        now = time.monotonic()
        if now - self._chunk_begun >= age_s:
            with explain_errors(self.folder, "out"):
                self._writer.flush()
            self._chunk_begun = now

    def finish(self, notes: Mapping[str, object]) -> None:
        """Finish the last file, with `notes` as its metadata, and write metadata.yaml; errors as in `write`."""
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in notes.items()}
        with explain_errors(self.folder, "out"):
            self._finish_file(texts)
        filled = [file for file in self.files if file.messages]
        first, last = (
            min((file.first_ns for file in filled), default=0),
            max((file.last_ns for file in filled), default=0),
        )
        total = sum((file.messages for file in self.files), Counter())
        content = {
            "version": 9,
            "storage_identifier": "mcap",
            "duration": {"nanoseconds": last - first},
            "starting_time": {"nanoseconds_since_epoch": first},
            "message_count": total.total(),
            "topics_with_message_count": [
                {
                    "topic_metadata": {
                        "name": topic.name,
                        "type": topic.type_name,
                        "serialization_format": "cdr",
                        "offered_qos_profiles": [],
                        "type_description_hash": self._messages.hash_type(topic.type_name) or "",
                    },
                    "message_count": total[topic.name],
                }
                for topic in self.topics
            ],
            "compression_format": "",
            "compression_mode": "",
            "relative_file_paths": [file.name for file in self.files],
            "files": [
                {
                    "path": file.name,
                    "starting_time": {"nanoseconds_since_epoch": file.first_ns},
                    "duration": {"nanoseconds": file.last_ns - file.first_ns},
                    "message_count": file.messages.total(),
                }
                for file in self.files
            ],
            "custom_data": texts or None,
            "ros_distro": self._messages.distro,
        }
        write_text(self.folder / METADATA, dump_yaml({"rosbag2_bagfile_information": content}), "out")

    def abandon(self) -> None:
        """Close the current file without finishing it, after a failure; its whole chunks stay readable."""
        with suppress(OSError):  # the caller reports the first failure
            self._file.close()

    def _open_next(self) -> None:
        from mcap.writer import CompressionType, Writer

        name = f"{self.folder.resolve().name}_{len(self.files)}.mcap"
        self._file: IO[bytes] = (self.folder / name).open("xb")
        self._writer = Writer(
            self._file, chunk_size=CHUNK_BYTES, compression=CompressionType[self._settings.compression.upper()]
        )
        self._writer.start("ros2", "embodied-rl")
        schemas = {
            kind: self._writer.register_schema(kind, "ros2msg", text.encode())
            for kind, text in self._definitions.items()
        }
        self._channels = [
            self._writer.register_channel(
                topic.name, "cdr", schemas[topic.type_name],
                {"offered_qos_profiles": "", "topic_type_hash": self._messages.hash_type(topic.type_name) or ""},
            )
            for topic in self.topics
        ]  # fmt: skip
        self._numbers = [0] * len(self.topics)
        self._chunk_begun = time.monotonic()
        self.files.append(FileCount(name))

    def _finish_file(self, notes: Mapping[str, str]) -> None:
        if notes:
            self._writer.flush()
            self._writer.add_metadata("embodied_rl", dict(notes))
        self._writer.finish()
        self._file.close()


def check_new(folder: Path) -> Path:
    """Return `folder` if it does not exist or is empty; raise `UserError` otherwise."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not overwritten: give a new folder", code="output-exists")
    return folder
