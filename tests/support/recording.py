"""Recordings made in one process, in lockstep: whoever publishes, the recorder, and a clock that stands."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.deployment.recording.bag_writer import BagSettings, BagWriter
from embodied_rl.deployment.recording.recorder import RecordingReport, TopicRecorder
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.messages import Messages
from tests.support.transports import START_NS

JOINTS, IMAGE, TEXT = "sensor_msgs/msg/JointState", "sensor_msgs/msg/Image", "std_msgs/msg/String"


@dataclass
class Studio:
    """A bus on which a test publishes, and a recorder that listens. `pass_time` moves the clock."""

    talker: InProcessTransport
    listener: InProcessTransport
    recorder: TopicRecorder
    folder: Path
    now: list[int]

    def pass_time(self, seconds: float) -> None:
        self.now[0] += round(seconds * 1e9)

    def write(self) -> None:
        """Write all that was published."""
        self.listener.spin_once()
        while self.recorder.write_waiting():
            pass

    def finish(self) -> RecordingReport:
        """Write the rest, and finish the recording."""
        self.listener.spin_once()
        return self.recorder.finish()


@contextmanager
def open_studio(
    folder: Path, topics: Sequence[RecordedTopic], messages: Messages, settings: BagSettings | None = None,
    queue_bytes: int = 2**26,
) -> Iterator[Studio]:  # fmt: skip
    """A recorder into `folder` on a bus of its own."""
    now = [START_NS]
    bus = Bus(lambda: now[0], messages)
    with InProcessTransport(bus, "talker") as talker, InProcessTransport(bus, "listener") as listener:
        bag = BagWriter(folder, topics, messages, settings)
        yield Studio(talker, listener, TopicRecorder(listener, topics, bag, queue_bytes), folder, now)
