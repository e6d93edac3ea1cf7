"""Records topics: raw messages go from a transport through a bounded queue to a thread that writes them.

The transport's thread only hands bytes over; it never waits for the disk and decodes nothing. Where the disk is too
slow, messages are dropped, counted by topic, and the count stands in the recording.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from embodied_rl.deployment.recording.bag_writer import BagWriter
from embodied_rl.deployment.recording.bounded_queue import Arrival, BoundedQueue
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.interface import Subscription, Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import StorageError

log = logging.getLogger(__name__)

TAKE_S = 0.2
"""The writing thread looks so often whether it is to end, and whether a chunk is old."""
DRAIN_S = 20.0
"""So long the end of a recording waits for what still has to be written."""
SILENT_S = 5.0
"""A topic that has said nothing for so long after the beginning is named."""


@dataclass(frozen=True)
class RecordingReport:
    """What became of a recording.

    Attributes:
        received, dropped: topic → messages. silent: topics that said nothing.
        seconds: how long it took. bytes: of all messages. queued: bytes that waited at the worst moment.
    """

    received: dict[str, int]
    dropped: dict[str, int]
    silent: tuple[str, ...]
    seconds: float
    bytes: int
    queued: int

    def list_lines(self) -> list[str]:
        """Return the report for people, one line each."""
        lines = [f"{sum(self.received.values())} messages, {self.bytes / 2**20:.1f} MiB in {self.seconds:.1f} s"]
        lines += [f"dropped because the disk was too slow: {many} of {name}" for name, many in self.dropped.items()]
        return lines + ([f"nothing came on {', '.join(self.silent)}"] if self.silent else [])


class TopicRecorder:
    """Subscribes to topics, and writes what comes into a bag.

    Args:
        transport: of this process; its thread, or whoever spins it, hands messages over.
        topics: what is recorded, those of the bag.
        bag: where to.
        queue_bytes: what may wait to be written.

    Attributes:
        failure: what ended the writing thread; None as long as all is well.
    """

    def __init__(
        self, transport: Transport, topics: Sequence[RecordedTopic], bag: BagWriter, queue_bytes: int = 256 * 2**20
    ) -> None:
        self.topics = tuple(topics)
        self.failure: BaseException | None = None
        self._transport, self._bag, self._queue = transport, bag, BoundedQueue(queue_bytes)
        self._received: Counter[int] = Counter()
        self._bytes, self._begun, self._ending = 0, time.monotonic(), threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted = [list(topic.requests) for topic in self.topics]
        self._subscriptions = [self._subscribe(number) for number in range(len(self.topics))]

    def start(self) -> None:
        """Write from a thread of its own, until `finish`."""
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)
        self._thread.start()

    def write_waiting(self, timeout_s: float = 0.0) -> int:
        """Write what waits, up to 64 messages; return how many there were. For the thread, or for lockstep without it.

        Raises:
            StorageError: see `BagWriter.write`.
        """
        taken = self._queue.take(timeout_s)
        for arrival in taken:
            self._bag.write(arrival)
        if not taken and timeout_s:
            self._bag.close_chunk()
        return len(taken)

    def relax_requests(self) -> list[str]:
        """Request less of topics whose publishers do not offer what was requested; return what still cannot be met."""
        return [line for number in range(len(self.topics)) for line in self._relax(number)]

    def list_silent(self) -> list[str]:
        """Return the topics that have said nothing yet."""
        return [topic.name for number, topic in enumerate(self.topics) if not self._received[number]]

    def finish(self) -> RecordingReport:
        """Stop, write what waits, and finish the bag; after a failure the bag stays as it is.

        Raises:
            StorageError: writing failed, now or before, or the disk does not answer.
        """
        for subscription in self._subscriptions:
            subscription.close()
        self._stop_thread()
        if self.failure is not None:
            self._bag.abandon()
            raise self.failure
        while self.write_waiting():
            pass
        report = self._report()
        self._bag.finish({"dropped": report.dropped, "silent": list(report.silent), "received": report.received})
        return report

    def _stop_thread(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(DRAIN_S)
            if self._thread.is_alive():
                raise StorageError(
                    f"{self._bag.folder} takes no more data for {DRAIN_S:.0f} s: the recording was cut off. Record to "
                    "another disk; embodied-rl record recover=<folder> reads what is whole."
                )

    def _subscribe(self, number: int) -> Subscription:
        topic, qos = self.topics[number], self._wanted[number].pop(0)
        return self._transport.create_subscription(
            topic.name, topic.type_name, qos, partial(self._note, number), raw=True
        )

    def _note(self, number: int, raw: bytes, received_ns: int, source_ns: int) -> None:
        self._received[number] += 1
        self._bytes += len(raw)
        self._queue.put(Arrival(number, raw, received_ns, source_ns))

    def _relax(self, number: int) -> Sequence[str]:
        if self._received[number] or not (faults := self._subscriptions[number].find_faults()):
            return ()
        if not self._wanted[number]:
            return faults
        self._subscriptions[number].close()
        self._subscriptions[number] = self._subscribe(number)
        return ()

    def _write(self) -> None:
        try:
            while self.write_waiting(TAKE_S) or not self._ending.is_set():
                pass
        except (OSError, UserError) as error:  # `finish` raises it, and whoever watches asks for `failure`
            self.failure = error
        except BaseException as error:
            log.exception("the recorder stopped writing")
            self.failure = error

    def _report(self) -> RecordingReport:
        named = {topic.name: self._received[number] for number, topic in enumerate(self.topics)}
        dropped = {self.topics[number].name: many for number, many in sorted(self._queue.dropped.items())}
        seconds = time.monotonic() - self._begun
        return RecordingReport(named, dropped, tuple(self.list_silent()), seconds, self._bytes, self._queue.most)


def _describe_silence(recorder: TopicRecorder, seconds: float) -> list[str]:
    silent = recorder.list_silent()
    if len(silent) < len(recorder.topics):
        return [f"nothing has come for {seconds:g} s on {', '.join(silent)}"] if silent else []
    return [
        f"nothing has come for {seconds:g} s on any topic: does the robot run, with the same ROS_DOMAIN_ID and "
        "ROS_AUTOMATIC_DISCOVERY_RANGE as this process?"
    ]


def record_topics(
    recorder: TopicRecorder, ends: Callable[[], bool], say: Callable[[str], None], silent_s: float = SILENT_S
) -> RecordingReport:
    """Record until `ends()`, over a transport whose thread spins; say in words what never came.

    Raises:
        StorageError: the disk is full, cannot be written, or does not answer.
    """
    recorder.start()
    begun, told = time.monotonic(), False
    while not ends() and recorder.failure is None:
        time.sleep(0.1)
        faults = recorder.relax_requests()
        if not told and time.monotonic() - begun >= silent_s:
            told = True
            for line in (*faults, *_describe_silence(recorder, silent_s)):
                say(line)
    return recorder.finish()
