"""Record topics: undecoded messages go through a bounded queue to a thread that writes them.

The transport's thread never waits for the disk. If the disk is too slow, messages are dropped; the recording contains
their number by topic.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.deployment.recording.bag_writer import Arrival, BagWriter, RecorderSettings
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.interface import Subscription, Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import StorageError

log = logging.getLogger(__name__)

TAKE_TIMEOUT_S = 0.2
"""Longest time that the writing thread waits for messages before it checks for the end and for old chunks."""
DRAIN_TIMEOUT_S = 20.0
"""Longest time to write the queued messages at the end of a recording."""
OVERHEAD = 200
"""Approximate overhead of a queued message in memory, in bytes."""


@dataclass(frozen=True)
class RecordingReport:
    """Result of a recording.

    Attributes:
        received, dropped: topic → messages. silent: topics without messages.
        seconds: duration. bytes: of all messages. queued: largest size of the queue, in bytes.
    """

    received: dict[str, int]
    dropped: dict[str, int]
    silent: tuple[str, ...]
    seconds: float
    bytes: int
    queued: int

    def list_lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [f"{sum(self.received.values())} messages, {self.bytes / 2**20:.1f} MiB in {self.seconds:.1f} s"]
        lines += [f"dropped because the disk was too slow: {many} of {name}" for name, many in self.dropped.items()]
        return lines + ([f"no messages on {', '.join(self.silent)}"] if self.silent else [])


class BoundedQueue:
    """Queue of messages with a limit in bytes; messages that do not fit are dropped and counted.

    Attributes:
        dropped: topic → messages dropped. most: largest size so far, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.dropped: Counter[int] = Counter()
        self.most = 0
        self._limit, self._size = limit, 0
        self._waiting: deque[Arrival] = deque()
        self._changed = threading.Condition()

    def put(self, arrival: Arrival) -> None:
        """Add a message, or drop it if the queue is full; never blocks."""
        size = len(arrival.raw) + OVERHEAD
        with self._changed:
            if self._size + size > self._limit:
                self.dropped[arrival.topic] += 1
                return
            self._waiting.append(arrival)
            self._size += size
            self.most = max(self.most, self._size)
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Arrival]:
        """Return up to 64 messages, oldest first; wait up to `timeout_s` for the first."""
        with self._changed:
            if not self._waiting and timeout_s > 0:
                self._changed.wait(timeout_s)
            taken = [self._waiting.popleft() for _ in range(min(64, len(self._waiting)))]
            self._size -= sum(len(each.raw) + OVERHEAD for each in taken)
            return taken


class TopicRecorder:
    """Subscribes to the topics of a bag and writes their messages to it.

    Args:
        transport: must be spun by its thread or by the caller.

    Attributes:
        failure: exception that ended the writing thread, or None.
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
        self._requests = [list(topic.requests) for topic in self.topics]
        self._subscriptions = [self._subscribe(number) for number in range(len(self.topics))]

    def start(self) -> None:
        """Start a thread that writes messages until `finish`."""

        def write() -> None:
            try:
                while self.write_waiting(TAKE_TIMEOUT_S) or not self._ending.is_set():
                    pass
            except (OSError, UserError) as error:  # `finish` raises it
                self.failure = error
            except BaseException as error:
                log.exception("the recorder stopped writing")
                self.failure = error

        self._thread = threading.Thread(target=write, name="recording", daemon=True)
        self._thread.start()

    def write_waiting(self, timeout_s: float = 0.0) -> int:
        """Write up to 64 queued messages; return their number. Called by the thread, or in lockstep without one."""
        taken = self._queue.take(timeout_s)
        for arrival in taken:
            self._bag.write(arrival)
        if not taken and timeout_s:
            self._bag.close_chunk()
        return len(taken)

    def relax_requests(self) -> list[str]:
        """Subscribe again with looser QoS where publishers do not match; return the mismatches that remain."""
        remaining: list[str] = []
        for number, subscription in enumerate(self._subscriptions):
            if self._received[number] or not (mismatches := subscription.find_mismatches()):
                continue
            if not self._requests[number]:
                remaining += mismatches
                continue
            subscription.close()
            self._subscriptions[number] = self._subscribe(number)
        return remaining

    def list_silent(self) -> list[str]:
        """Return the topics without messages so far."""
        return [topic.name for number, topic in enumerate(self.topics) if not self._received[number]]

    def finish(self) -> RecordingReport:
        """Stop, write the queued messages, and finish the bag; after a failure the bag is left unfinished.

        Raises:
            StorageError: writing failed, now or before, or the disk does not respond.
        """
        for subscription in self._subscriptions:
            subscription.close()
        self._ending.set()
        if self._thread is not None:
            self._thread.join(DRAIN_TIMEOUT_S)
            if self._thread.is_alive():
                raise StorageError(
                    f"{self._bag.folder} has accepted no data for {DRAIN_TIMEOUT_S:.0f} s: the recording was cut off. "
                    "Record to another disk; embodied-rl record recover=<folder> reads the part that was written.",
                    code="disk-not-responding",
                )
        if self.failure is not None:
            self._bag.abandon()
            raise self.failure
        while self.write_waiting():
            pass
        named = {topic.name: self._received[number] for number, topic in enumerate(self.topics)}
        dropped = {self.topics[number].name: many for number, many in sorted(self._queue.dropped.items())}
        seconds = time.monotonic() - self._begun
        report = RecordingReport(named, dropped, tuple(self.list_silent()), seconds, self._bytes, self._queue.most)
        self._bag.finish({"dropped": report.dropped, "silent": list(report.silent), "received": report.received})
        return report

    def _subscribe(self, number: int) -> Subscription:
        topic, qos = self.topics[number], self._requests[number].pop(0)

        def receive(raw: bytes, received_ns: int, source_ns: int) -> None:
            self._received[number] += 1
            self._bytes += len(raw)
            self._queue.put(Arrival(number, raw, received_ns, source_ns))

        return self._transport.create_subscription(topic.name, topic.type_name, qos, receive, raw=True)


def record_topics(
    topics: Sequence[RecordedTopic],
    folder: Path,
    settings: RecorderSettings,
    environment: RosEnvironment | None,
    stops: Callable[[], bool],
    report: Callable[[str], None],
    ready: Callable[[], None],
) -> RecordingReport:
    """Record in this process until `stops()`.

    Args:
        environment: of ROS 2; by default from the environment variables.
        stops: returns whether to end the recording.
        report: is called with lines about topics without messages.
        ready: is called once all topics are subscribed.

    Raises:
        UserError: the folder is not new, or a type is unknown. StorageError: the disk is full, cannot be written, or
            does not respond. TransportError: the transport failed. Unavailable: a package is missing.
    """
    with open_transport(settings.transport, "recorder", environment) as transport:
        bag = BagWriter(folder, topics, transport.messages, settings)
        recorder = TopicRecorder(transport, topics, bag, settings.queue_bytes)
        transport.start()
        ready()
        recorder.start()
        begun, reported = time.monotonic(), False
        while not stops() and transport.failure is None and recorder.failure is None:
            time.sleep(0.1)
            mismatches = recorder.relax_requests()
            if not reported and time.monotonic() - begun >= settings.silent_s:
                reported, silent = True, recorder.list_silent()
                for line in mismatches:
                    report(line)
                if len(silent) == len(topics):
                    report(
                        f"no messages for {settings.silent_s:g} s on any topic: is the robot running, with the same "
                        "ROS_DOMAIN_ID and ROS_AUTOMATIC_DISCOVERY_RANGE as this process?"
                    )
                elif silent:
                    report(f"no messages for {settings.silent_s:g} s on {', '.join(silent)}")
        return recorder.finish()
