"""Writes a recording: a folder of MCAP files that rosbag2 understands, split by size and time.

<folder>/<name>_0.mcap …    profile ros2, messages as CDR bytes, their definitions as ros2msg
<folder>/metadata.yaml      see `bag_metadata`; it appears when the recording ends, so that one without was cut off
<folder>/description.yaml   of the robot, where it is known; see `robot_file`
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from embodied_rl.deployment.recording.bag_metadata import FileCount, write_metadata
from embodied_rl.deployment.recording.bounded_queue import Arrival
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.extras import require
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import explain_errors, make_folder

Compression = Literal["none", "lz4", "zstd"]
CHUNK = 2**20
"""Bytes of a chunk, the piece of a file that is whole or lost where the recorder is killed."""
LONGEST_CHUNK_S = 1.0
"""A chunk is closed after so long, however little it holds: so much is lost at most."""
NOTES = "embodied_rl"


@dataclass(frozen=True)
class BagSettings:
    """How a recording is written.

    Attributes:
        split_bytes, split_s: a file that has grown so large, or spans so long, is followed by another one.
        compression: of chunks.
    """

    split_bytes: int = 2**30
    split_s: float = 600.0
    compression: Compression = "none"


class BagWriter:
    """A recording in a new folder.

    Args:
        folder: made here; one that holds anything is refused.
        topics: what is written; an arrival's `topic` is a position in it.
        messages: the types of messages.

    Raises:
        UserError: the folder holds files, or a type is unknown. StorageError: it cannot be made or written.
        Unavailable: the package mcap is missing.
    """

    def __init__(
        self, folder: Path, topics: Sequence[RecordedTopic], messages: Messages, settings: BagSettings | None = None
    ) -> None:
        require("mcap", "recording")
        self.folder, self.topics, self.files = check_new(folder), tuple(topics), list[FileCount]()
        self._messages, self._settings = messages, settings or BagSettings()
        self._definitions = {topic.type_name: messages.define_type(topic.type_name) for topic in self.topics}
        make_folder(folder, "out")
        with explain_errors(folder, "out"):
            self._open_next()

    def write(self, arrival: Arrival) -> None:
        """Write a message; begin another file before, where this one is full.

        Raises:
            StorageError: the disk is full, or the folder is gone. OSError: another failure of the disk.
        """
        with explain_errors(self.folder, "out"):
            if self._is_full(arrival.received_ns):
                self._finish_file({})
                self._open_next()
            self._writer.add_message(
                self._channels[arrival.topic], arrival.received_ns, arrival.raw, arrival.source_ns,
                self._numbers[arrival.topic] & 0xFFFFFFFF,
            )  # fmt: skip
            self._numbers[arrival.topic] += 1
            self.files[-1].add(self.topics[arrival.topic].name, arrival.received_ns)
            self.close_chunk(LONGEST_CHUNK_S)

    def close_chunk(self, age_s: float = 0.0) -> None:
        """Hand the current chunk to the system if it is older than `age_s`: a later kill of this process spares it."""
        now = time.monotonic()
        if now - self._chunk_begun >= age_s:
            with explain_errors(self.folder, "out"):
                self._writer.flush()
            self._chunk_begun = now

    def finish(self, notes: Mapping[str, object]) -> None:
        """Finish the last file, with notes of the recorder as its metadata, and write metadata.yaml.

        Raises:
            StorageError: see `write`.
        """
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in notes.items()}
        with explain_errors(self.folder, "out"):
            self._finish_file(texts)
        write_metadata(self.folder, self.topics, self.files, self._messages, texts)

    def abandon(self) -> None:
        """Close the current file as it is, after a failure; what is whole in it can be read."""
        with suppress(OSError):  # the disk has failed already, which somebody else says
            self._file.close()

    def _open_next(self) -> None:
        from mcap.writer import CompressionType, Writer

        name = f"{self.folder.resolve().name}_{len(self.files)}.mcap"
        self._file: IO[bytes] = (self.folder / name).open("xb")
        self._writer = Writer(
            self._file, chunk_size=CHUNK, compression=CompressionType[self._settings.compression.upper()]
        )
        self._writer.start("ros2", "embodied-rl")
        schemas = {
            kind: self._writer.register_schema(kind, "ros2msg", text.encode())
            for kind, text in self._definitions.items()
        }
        self._channels = [self._register(topic, schemas[topic.type_name]) for topic in self.topics]
        self._numbers = [0] * len(self.topics)
        self._chunk_begun = time.monotonic()
        self.files.append(FileCount(name))

    def _register(self, topic: RecordedTopic, schema: int) -> int:
        notes = {"offered_qos_profiles": "", "topic_type_hash": self._messages.hash_type(topic.type_name) or ""}
        return self._writer.register_channel(topic.name, "cdr", schema, notes)

    def _is_full(self, now_ns: int) -> bool:
        file = self.files[-1]
        if not file.messages:
            return False
        old = now_ns - file.first_ns >= self._settings.split_s * 1e9
        return old or self._file.tell() >= self._settings.split_bytes

    def _finish_file(self, notes: Mapping[str, str]) -> None:
        if notes:
            self._writer.flush()
            self._writer.add_metadata(NOTES, dict(notes))
        self._writer.finish()
        self._file.close()


def check_new(folder: Path) -> Path:
    """Return a folder if a recording, or what is made of one, may be written there.

    Raises:
        UserError: it exists and holds something, or is a file.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder} is there already, and nothing is overwritten: give a new folder")
    return folder
