"""Recordings made in one process, in lockstep: a publisher, a recorder and a clock that the test sets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.deployment.recording.bag_writer import BagWriter, RecorderSettings
from embodied_rl.deployment.recording.recorder import RecordingReport, TopicRecorder
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.messages import Messages
from tests.support.transports import START_NS

JOINTS, IMAGE, TEXT = "sensor_msgs/msg/JointState", "sensor_msgs/msg/Image", "std_msgs/msg/String"


@dataclass
class RecordingBench:
    """A node that publishes, and a recorder. `pass_time` advances the clock."""

    talker: InProcessTransport
    listener: InProcessTransport
    recorder: TopicRecorder
    folder: Path
    now: list[int]

    def pass_time(self, seconds: float) -> None:
        self.now[0] += round(seconds * 1e9)

    def write(self) -> None:
        """Write all published messages."""
        self.listener.spin_once()
        while self.recorder.write_waiting():
            pass

    def finish(self) -> RecordingReport:
        """Finish the recording."""
        self.listener.spin_once()
        return self.recorder.finish()


@contextmanager
def open_bench(
    folder: Path, topics: Sequence[RecordedTopic], messages: Messages, settings: RecorderSettings | None = None,
    queue_bytes: int = 2**26,
) -> Iterator[RecordingBench]:  # fmt: skip
    """Open a recorder into `folder` on a new bus."""
    now = [START_NS]
    bus = Bus(lambda: now[0], messages)
    with InProcessTransport(bus, "talker") as talker, InProcessTransport(bus, "listener") as listener:
        bag = BagWriter(folder, topics, messages, settings)
        yield RecordingBench(talker, listener, TopicRecorder(listener, topics, bag, queue_bytes), folder, now)
