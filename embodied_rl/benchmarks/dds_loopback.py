"""Measure loss and latency of DDS between two processes of this machine; docs/ros2.md has results.

    python -m embodied_rl.benchmarks.dds_loopback 60

The argument is the duration per stream in seconds. Results depend on the machine's load, which is printed.
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
class BenchmarkStream:
    """Messages of one type at a rate."""

    name: str
    type_name: str
    hz: float
    reliability: Reliability
    depth: int

    @property
    def qos(self) -> QoS:
        """QoS of the publisher and the subscription."""
        return QoS(self.reliability, depth=self.depth)


@dataclass(frozen=True)
class StreamResult:
    """Loss and latency of a stream. Latencies are from publishing to receiving, in milliseconds."""

    stream: str
    sent: int
    received: int
    disordered: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    load: float


# A depth of 100 holds 200 ms of messages while the receiver does not run.
STREAMS = (
    BenchmarkStream("joint states, 500 Hz, reliable", "sensor_msgs/msg/JointState", 500, "reliable", 100),
    BenchmarkStream("images of 640×480, 30 Hz, best effort", "sensor_msgs/msg/Image", 30, "best_effort", 5),
)


def measure_stream(stream: BenchmarkStream, seconds: float, domain: int = DOMAIN) -> StreamResult:
    """Receive a stream that another process publishes for `seconds`; return loss and latency.

    Args:
        stream: what is published.
        seconds: duration.
        domain: DDS domain; a discovery tag separates it from other processes.

    Raises:
        TransportError: the processes do not discover each other within 30 s.
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
    late_ms = np.array(late_ns or [np.nan]) / 1e6
    p50, p95, p99 = (float(np.percentile(late_ms, share)) for share in (50, 95, 99))
    disordered = int((np.diff(numbers) <= 0).sum())
    received, load = len(set(numbers)), os.getloadavg()[0]
    return StreamResult(stream.name, sent, received, disordered, p50, p95, p99, float(late_ms.max()), load)


def publish_stream(node: Transport, stream: BenchmarkStream, seconds: float) -> int:
    """Publish a stream after a line on standard input; return the number of published messages."""
    publisher = node.create_publisher("/measured", stream.type_name, stream.qos)
    sys.stdin.readline()
    if not node.spin_until(lambda: publisher.count_matched() == 1, LONGEST_WAIT_S):
        raise TransportError(f"{stream.name}: no subscription")
    if stream.type_name == "sensor_msgs/msg/Image":
        picture = np.random.default_rng(0).integers(0, 256, 480 * 640 * 3, dtype=np.uint8)
        content: dict[str, Any] = {"height": 480, "width": 640, "encoding": "rgb8", "step": 1920, "data": picture}
    else:
        zeros = np.zeros(7)
        content = {"name": [f"joint_{i}" for i in range(7)], "position": zeros, "velocity": zeros, "effort": zeros}
    message = node.messages.make(stream.type_name, **content)
    count, start = int(stream.hz * seconds), time.monotonic()
    for number in range(count):
        message.header.frame_id = str(number)
        publisher.publish(message)
        time.sleep(max(0.0, start + (number + 1) / stream.hz - time.monotonic()))
    time.sleep(0.5)  # lost messages are retransmitted while the publisher exists
    return count


def main(arguments: list[str]) -> None:
    """Measure every stream for `arguments[0]` seconds, or publish one for the process that measures."""
    if arguments and arguments[0].startswith("{"):
        values = json.loads(arguments[0])
        environment = RosEnvironment(**values["environment"] | {"peers": ()})
        with open_transport("dds", "sends", environment) as node:
            print(publish_stream(node, BenchmarkStream(**values["stream"]), values["seconds"]))
        return
    for stream in STREAMS:
        print(measure_stream(stream, float(arguments[0]) if arguments else 10.0), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
