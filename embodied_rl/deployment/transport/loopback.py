"""Measures DDS between two processes of this machine: what is lost, what is late. The figures are in docs/ros2.md.

    python -m embodied_rl.deployment.transport.loopback 60

It measures each stream for so many seconds. The load of the machine stands beside the figures, which depend on it.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.deployment.transport.qos import QoS, Reliability
from embodied_rl.interfaces.errors import TransportError

DOMAIN = 19
LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Stream:
    """Messages of one kind at a rate."""

    name: str
    type_name: str
    hz: float
    reliability: Reliability
    depth: int

    @property
    def qos(self) -> QoS:
        """What both ends use."""
        return QoS(self.reliability, depth=self.depth)


@dataclass(frozen=True)
class Figures:
    """What came of a stream. Times are from publishing to receiving, in milliseconds."""

    stream: str
    sent: int
    received: int
    disordered: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    load: float


# A depth of 100 bridges 200 ms in which the receiver does not run; what does not fit is replaced by what is newer.
STREAMS = (
    Stream("joint states, 500 Hz, reliable", "sensor_msgs/msg/JointState", 500, "reliable", 100),
    Stream("images of 640×480, 30 Hz, best effort", "sensor_msgs/msg/Image", 30, "best_effort", 5),
)


def measure_stream(stream: Stream, seconds: float, domain: int = DOMAIN) -> Figures:
    """Receive a stream that another process publishes, and return what came of it.

    Args:
        stream: what it publishes.
        seconds: for so long.
        domain: of DDS; a tag of its own keeps other processes away.

    Raises:
        TransportError: the two do not find each other within 30 s.
    """
    environment = RosEnvironment(domain=domain, range="LOCALHOST", tag=secrets.token_hex(8))
    numbers: list[int] = []
    late_ns: list[int] = []

    def note(message: Any, received_ns: int, source_ns: int) -> None:
        numbers.append(int(message.header.frame_id))
        late_ns.append(received_ns - source_ns)

    with open_transport("dds", "receives", environment) as node:
        subscription = node.create_subscription("/measured", stream.type_name, stream.qos, note)
        values = json.dumps({"stream": asdict(stream), "seconds": seconds, "environment": asdict(environment)})
        command = [sys.executable, "-m", __spec__.name, values]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            if not node.spin_until(lambda: subscription.count_matched() == 1, LONGEST_WAIT_S):
                other.kill()
                raise TransportError(f"{stream.name}: the two processes did not find each other within 30 s")
            assert other.stdin is not None and other.stdout is not None
            other.stdin.write("\n")
            other.stdin.flush()
            node.spin_until(lambda: other.poll() is not None, seconds + LONGEST_WAIT_S)
            node.spin_until(lambda: False, 0.5)
            other.kill()
            sent = int(other.stdout.read() or 0)
    return _sum_up(stream, sent, numbers, np.array(late_ns or [np.nan]) / 1e6)


def _sum_up(stream: Stream, sent: int, numbers: list[int], late_ms: np.ndarray) -> Figures:
    p50, p95, p99 = (float(np.percentile(late_ms, share)) for share in (50, 95, 99))
    disordered = int((np.diff(numbers) <= 0).sum())
    received = len(set(numbers))
    load = os.getloadavg()[0]
    return Figures(stream.name, sent, received, disordered, p50, p95, p99, float(late_ms.max()), load)


def publish_stream(node: Transport, stream: Stream, seconds: float) -> int:
    """Publish a stream as soon as a line comes on the input; return how many messages were published."""
    publisher = node.create_publisher("/measured", stream.type_name, stream.qos)
    sys.stdin.readline()
    if not node.spin_until(lambda: publisher.count_matched() == 1, LONGEST_WAIT_S):
        raise TransportError(f"{stream.name}: nobody receives")
    message = _make_message(node, stream)
    count, start = int(stream.hz * seconds), time.monotonic()
    for number in range(count):
        message.header.frame_id = str(number)
        publisher.publish(message)
        time.sleep(max(0.0, start + (number + 1) / stream.hz - time.monotonic()))
    time.sleep(0.5)  # what was lost is sent again as long as its publisher lives
    return count


def _make_message(node: Transport, stream: Stream) -> Any:
    make = node.messages.make
    if stream.type_name == "sensor_msgs/msg/Image":
        picture = np.random.default_rng(0).integers(0, 256, 480 * 640 * 3, dtype=np.uint8)
        return make(stream.type_name, height=480, width=640, encoding="rgb8", step=1920, data=picture)
    names, zeros = [f"joint_{index}" for index in range(7)], np.zeros(7)
    return make(stream.type_name, name=names, position=zeros, velocity=zeros, effort=zeros)


def _publish_for_another_process(values: dict[str, Any]) -> None:
    environment = RosEnvironment(**values["environment"] | {"peers": ()})
    with open_transport("dds", "sends", environment) as node:
        print(publish_stream(node, Stream(**values["stream"]), values["seconds"]))


def main(arguments: list[str]) -> None:
    """Measure every stream for `arguments[0]` seconds, or publish one for the process that measures."""
    if arguments and arguments[0].startswith("{"):
        return _publish_for_another_process(json.loads(arguments[0]))
    for stream in STREAMS:
        print(measure_stream(stream, float(arguments[0]) if arguments else 10.0), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
