"""The configurations of the commands `record` and `convert`: what a robot does, recorded, and made into episodes."""

from dataclasses import dataclass
from typing import Literal

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.trust import FilePath, Text


@dataclass(frozen=True)
class RecordConfig:
    robot: FilePath = "tabletop"
    """Whose topics are recorded: a name of configs/robot, or a YAML file."""
    out: FilePath = "recording"
    """Folder of the recording, which must be new."""
    seconds: float | None = at_least(0.0, None)
    """Record for so long; null: until Ctrl-C."""
    transport: Literal["dds", "rclpy"] = "dds"
    """dds needs no ROS 2; rclpy uses the one that is installed."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Of what is written: none is quickest, lz4 costs little, zstd takes the least space."""
    split_mb: int = at_least(1, 1024)
    """MiB after which another file is begun."""
    split_minutes: float = at_least(0.01, 10.0)
    """Minutes after which another file is begun."""
    queue_mb: int = at_least(1, 256)
    """MiB that may wait to be written; what comes on top of it is dropped and counted."""
    silent: float = at_least(0.1, 5.0)
    """Seconds after which topics that have said nothing are named."""
    recover: FilePath | None = None
    """Folder of a recording whose recorder was killed: what is whole of it is written to `out`; nothing is recorded."""


@dataclass(frozen=True)
class ConvertConfig:
    recording: FilePath
    """Folder of a recording, also as a plain word, or one MCAP or SQLite file; also an ordinary one of `ros2 bag`."""
    robot: FilePath | None = None
    """The robot that was recorded: a name of configs/robot, or a YAML file; null takes what the recording says."""
    out: FilePath = "demonstrations"
    """Folder that is written, which must hold nothing of the kind yet."""
    format: Literal["lerobot", "replay"] = "lerobot"
    """lerobot: a LeRobotDataset v3.0, which needs the extra embodied-rl[lerobot]; replay: a replay storage."""
    images: Literal["video", "png"] = "video"
    """Pictures of format=lerobot: video loses detail and colour; png loses nothing and takes more space."""
    instruction: Text | None = None
    """Words of the task, where the recording does not say them."""
    aborted: bool = False
    """Keep episodes that the operator aborted, as if time had ended them."""
