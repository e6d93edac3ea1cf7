"""The part of rclpy that the transport uses, within one process: for machines without ROS 2.

It has rclpy's names and signatures, as read in its source (Jazzy): serialised bytes may be published in place of a
message, `raw=True` gives them to callbacks, which may take a `MessageInfo`. What carries them is a bus in this process.
It shows that the transport calls rclpy as rclpy wants to be called, and nothing about rclpy itself.
"""

import enum
import inspect
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.interface import Endpoint
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.qos import QoS

_BUS: list[Bus] = []


class ReliabilityPolicy(enum.IntEnum):
    RELIABLE = 1
    BEST_EFFORT = 2


class DurabilityPolicy(enum.IntEnum):
    TRANSIENT_LOCAL = 1
    VOLATILE = 2


class HistoryPolicy(enum.IntEnum):
    KEEP_LAST = 1


@dataclass(frozen=True)
class Duration:
    nanoseconds: int


@dataclass(frozen=True)
class QoSProfile:
    history: HistoryPolicy
    depth: int
    reliability: ReliabilityPolicy
    durability: DurabilityPolicy
    lifespan: Duration | None = None

    def __post_init__(self) -> None:
        assert self.lifespan is None or isinstance(self.lifespan, Duration)

    def ours(self) -> QoS:
        lifespan = None if self.lifespan is None else self.lifespan.nanoseconds / 1e9
        reliability: Any = self.reliability.name.lower()
        durability: Any = self.durability.name.lower()
        return QoS(reliability, durability, self.depth, lifespan)


class Context:
    alive = False

    def init(self) -> None:
        self.alive = True

    def shutdown(self) -> None:
        self.alive = False


class Node:
    def __init__(self, node_name: str, *, context: Context) -> None:
        assert context.alive
        self.name = node_name
        self.bus_node = InProcessTransport(_BUS[0], node_name)

    def create_publisher(self, msg_type: Any, topic: str, qos_profile: QoSProfile) -> Any:
        made = self.bus_node.create_publisher(topic, msg_type.type_name, qos_profile.ours())

        def publish(message: Any) -> None:
            assert isinstance(message, bytes), "rclpy publishes messages of its own classes, or bytes"
            made.send(message)

        return SimpleNamespace(publish=publish, end=made)

    def create_subscription(
        self, msg_type: Any, topic: str, callback: Callable[..., None], qos_profile: QoSProfile, *, raw: bool = False
    ) -> Any:
        assert raw
        with pytest.raises(TypeError):
            inspect.signature(callback).bind(object())  # otherwise rclpy gives it the message alone
        inspect.signature(callback).bind(object(), object())

        def arrive(data: bytes, received_ns: int, source_ns: int) -> None:
            callback(data, {"source_timestamp": source_ns, "received_timestamp": received_ns})

        made = self.bus_node.create_subscription(topic, msg_type.type_name, qos_profile.ours(), arrive, raw=True)
        return SimpleNamespace(end=made)

    def get_publishers_info_by_topic(self, topic_name: str) -> list[Any]:
        return [_info(each) for each in self.bus_node.list_publishers(topic_name)]

    def get_subscriptions_info_by_topic(self, topic_name: str) -> list[Any]:
        return [_info(each) for each in self.bus_node.list_subscriptions(topic_name)]

    def get_clock(self) -> Any:
        return SimpleNamespace(now=lambda: SimpleNamespace(nanoseconds=self.bus_node.now()))

    def destroy_publisher(self, publisher: Any) -> None:
        publisher.end.close()

    def destroy_subscription(self, subscription: Any) -> None:
        subscription.end.close()

    def destroy_node(self) -> None:
        self.bus_node.close()


def _info(end: Endpoint) -> Any:
    (owner,) = (each.transport for each in (*_BUS[0].publishers, *_BUS[0].subscriptions) if each.gid == end.gid)
    profile = QoSProfile(
        HistoryPolicy.KEEP_LAST,
        0,
        ReliabilityPolicy[end.qos.reliability.upper()],
        DurabilityPolicy[end.qos.durability.upper()],
    )
    return SimpleNamespace(
        node_name=owner.node,
        node_namespace="/",
        topic_type=end.type_name,
        endpoint_gid=list(end.gid),
        qos_profile=profile,
    )


@dataclass
class SingleThreadedExecutor:
    context: Context
    nodes: list[Node] = field(default_factory=list)

    def add_node(self, node: Node) -> None:
        self.nodes.append(node)

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Run one callback, as rclpy does."""
        waiting = [
            (sample.number, end)
            for node in self.nodes
            for end in _BUS[0].subscriptions
            if end.transport is node.bus_node
            for sample in end.waiting
        ]
        if not waiting:
            return time.sleep(min(timeout_sec or 0.0, 0.01))
        _, end = min(waiting, key=lambda pair: pair[0])
        sample = end.waiting.popleft()
        if not sample.expired(_BUS[0].clock()):
            end.deliver(sample.raw, _BUS[0].clock(), sample.source_ns)

    def shutdown(self) -> None:
        self.nodes.clear()


def install(patch: pytest.MonkeyPatch) -> None:
    """Let `import rclpy` find this, and the classes of messages that come with it."""
    messages = Messages("jazzy")
    _BUS[:] = [Bus(time.time_ns, messages)]
    here = sys.modules[__name__]
    for part in ("", ".qos", ".executors", ".context", ".node", ".duration"):
        patch.setitem(sys.modules, "rclpy" + part, here)
    packages: dict[str, ModuleType] = {}
    for type_name in messages.list_types():
        package, _, name = type_name.split("/")
        module = packages.setdefault(package, ModuleType(f"{package}.msg"))
        setattr(module, name, SimpleNamespace(type_name=type_name))
    for package, module in packages.items():
        patch.setitem(sys.modules, package, ModuleType(package))
        patch.setitem(sys.modules, f"{package}.msg", module)
