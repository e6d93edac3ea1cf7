"""The metadata.yaml of a recording, as rosbag2 of Jazzy writes it (version 9): `ros2 bag` and rosbags read it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embodied_rl.config.freeze import dump_yaml
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.system.atomic_write import write_text

METADATA = "metadata.yaml"


@dataclass
class FileCount:
    """Messages by topic of one file, and the times of its first and last message, in nanoseconds since 1970."""

    name: str
    messages: Counter[str] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0

    def add(self, topic: str, time_ns: int) -> None:
        """Count a message."""
        self.first_ns = min(self.first_ns, time_ns) if self.messages else time_ns
        self.last_ns = max(self.last_ns, time_ns)
        self.messages[topic] += 1


def write_metadata(
    folder: Path,
    topics: Sequence[RecordedTopic],
    files: Sequence[FileCount],
    messages: Messages,
    notes: Mapping[str, str],
) -> None:
    """Write metadata.yaml, with `notes` as custom_data.

    Raises:
        StorageError: the disk is full, or the folder does not exist.
    """
    filled = [file for file in files if file.messages]
    first, last = min((file.first_ns for file in filled), default=0), max((file.last_ns for file in filled), default=0)
    total = sum((file.messages for file in files), Counter())
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
                    "type_description_hash": messages.hash_type(topic.type_name) or "",
                },
                "message_count": total[topic.name],
            }
            for topic in topics
        ],
        "compression_format": "",
        "compression_mode": "",
        "relative_file_paths": [file.name for file in files],
        "files": [
            {
                "path": file.name,
                "starting_time": {"nanoseconds_since_epoch": file.first_ns},
                "duration": {"nanoseconds": file.last_ns - file.first_ns},
                "message_count": file.messages.total(),
            }
            for file in files
        ],
        "custom_data": dict(notes) or None,
        "ros_distro": messages.distro,
    }
    write_text(folder / METADATA, dump_yaml({"rosbag2_bagfile_information": content}), "out")
