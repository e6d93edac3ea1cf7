"""Records topics in this process, from opening the transport to the report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embodied_rl.deployment.recording.bag_writer import BagSettings, BagWriter
from embodied_rl.deployment.recording.recorder import SILENT_S, RecordingReport, TopicRecorder, record_topics
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.opening import open_transport


@dataclass(frozen=True)
class RecorderSettings:
    """How a recorder works.

    Attributes:
        bag: how files are written. queue_bytes: what may wait to be written.
        transport: dds or rclpy. silent_s: topics that say nothing for so long after the beginning are named.
    """

    bag: BagSettings = field(default_factory=BagSettings)
    queue_bytes: int = 256 * 2**20
    transport: str = "dds"
    silent_s: float = SILENT_S


def record_here(
    topics: Sequence[RecordedTopic],
    folder: Path,
    settings: RecorderSettings,
    environment: RosEnvironment | None,
    ends: Callable[[], bool],
    say: Callable[[str], None],
    ready: Callable[[], None],
) -> RecordingReport:
    """Record until `ends()`; call `ready()` once everything is subscribed, and `say` what never came.

    Raises:
        UserError: the folder is not new, a type is unknown, or the disk is full. TransportError: the transport failed.
        Unavailable: the extra ros2 is missing.
    """
    with open_transport(settings.transport, "recorder", environment) as transport:
        bag = BagWriter(folder, topics, transport.messages, settings.bag)
        recorder = TopicRecorder(transport, topics, bag, settings.queue_bytes)
        transport.start()
        ready()
        return record_topics(recorder, lambda: ends() or transport.failure is not None, say, settings.silent_s)
