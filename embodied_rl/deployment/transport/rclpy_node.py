"""A node through rclpy, the Python package of an installed ROS 2, over its configured middleware.

Messages are encoded and decoded by `messages.py`; rclpy publishes and receives serialised bytes.
"""

import importlib
import os
from typing import Any

from embodied_rl.deployment.transport.interface import Callback, Endpoint, Publisher, Subscription, Transport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import TransportError
from embodied_rl.interfaces.sim import Unavailable

MESSAGES_PER_SPIN = 64
"""Callbacks that `spin_once` runs at most."""


class RclpyPublisher(Publisher):
    """A publisher of rclpy."""

    def __init__(
        self, transport: "RclpyTransport", topic: str, type_name: str, qos: QoS, made: Any, gid: bytes
    ) -> None:
        super().__init__(transport, topic, type_name, qos, gid)
        self._node, self._made = transport, made

    def send(self, raw: bytes) -> None:
        if self._made is None:
            raise TransportError(f"{self.topic}: this publisher is closed")
        self._made.publish(raw)

    def count_matched(self) -> int:
        return len(self.transport.list_subscriptions(self.topic)) - len(self.find_mismatches())

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            self._node.ros_node.destroy_publisher(made)


class RclpySubscription(Subscription):
    """A subscription of rclpy."""

    made: Any = None

    def count_matched(self) -> int:
        return len(self.transport.list_publishers(self.topic)) - len(self.find_mismatches())

    def close(self) -> None:
        made, self.made = self.made, None
        if made is not None and isinstance(self.transport, RclpyTransport):
            self.transport.ros_node.destroy_subscription(made)


class RclpyTransport(Transport):
    """A node of rclpy, with a separate context.

    Raises:
        Unavailable: rclpy cannot be imported. UserError: ROS_DISTRO names a release whose messages are unknown.
    """

    kind = "rclpy"
    identifies_publishers = False
    """Releases before 2025 do not pass the publisher to callbacks (ros2/rclpy#1466)."""

    def __init__(self, node: str = "embodied_rl") -> None:
        super().__init__(Messages(os.environ.get("ROS_DISTRO", "").lower() or "jazzy"), node)
        self._qos, executors = _import("rclpy.qos"), _import("rclpy.executors")
        self._duration = _import("rclpy.duration").Duration
        self._context = _import("rclpy.context").Context()
        self._context.init()
        self.ros_node = _import("rclpy.node").Node(node, context=self._context)
        self._executor = executors.SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.ros_node)
        self._endpoints: list[RclpyPublisher | RclpySubscription] = []
        self._calls = self._delivered = 0

    def _create_publisher(self, topic: str, type_name: str, qos: QoS) -> Publisher:
        known = {each.gid for each in self.list_publishers(topic)}
        made = self.ros_node.create_publisher(_find_class(type_name), topic, self._profile(qos))
        publisher = RclpyPublisher(self, topic, type_name, qos, made, _new_gid(self.list_publishers(topic), known))
        self._endpoints.append(publisher)
        return publisher

    def _create_subscription(self, topic: str, type_name: str, qos: QoS, callback: Callback, raw: bool) -> Subscription:
        known = {each.gid for each in self.list_subscriptions(topic)}

        def arrive(data: bytes, info: Any) -> None:
            self._calls += 1
            self._delivered += subscription.deliver(data, self.now(), info["source_timestamp"])

        made = self.ros_node.create_subscription(_find_class(type_name), topic, arrive, self._profile(qos), raw=True)
        gid = _new_gid(self.list_subscriptions(topic), known)
        subscription = RclpySubscription(self, topic, type_name, qos, callback, gid, raw)
        subscription.made = made
        self._endpoints.append(subscription)
        return subscription

    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        self._check_open()
        return tuple(self._describe(topic, each) for each in self.ros_node.get_publishers_info_by_topic(topic))

    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        self._check_open()
        return tuple(self._describe(topic, each) for each in self.ros_node.get_subscriptions_info_by_topic(topic))

    def _describe(self, topic: str, info: Any) -> Endpoint:
        found = info.qos_profile
        reliable = found.reliability == self._qos.ReliabilityPolicy.RELIABLE
        latched = found.durability == self._qos.DurabilityPolicy.TRANSIENT_LOCAL
        qos = QoS("reliable" if reliable else "best_effort", "transient_local" if latched else "volatile")
        node = info.node_namespace.rstrip("/") + "/" + info.node_name
        return Endpoint(topic, info.topic_type, qos, bytes(info.endpoint_gid), node == "/" + self.node, node=node)

    def _profile(self, qos: QoS) -> Any:
        policies, more = self._qos, {}
        if qos.lifespan_s is not None:
            more["lifespan"] = self._duration(nanoseconds=int(qos.lifespan_s * 1e9))
        return policies.QoSProfile(
            history=policies.HistoryPolicy.KEEP_LAST,
            depth=qos.depth,
            reliability=policies.ReliabilityPolicy[qos.reliability.upper()],
            durability=policies.DurabilityPolicy[qos.durability.upper()],
            **more,
        )

    def now(self) -> int:
        return self.ros_node.get_clock().now().nanoseconds

    def _spin_once(self, timeout_s: float) -> int:
        delivered, timeout = self._delivered, max(timeout_s, 0.0)
        for _ in range(MESSAGES_PER_SPIN):
            calls = self._calls
            self._executor.spin_once(timeout_sec=timeout)
            if self._calls == calls:
                break
            timeout = 0.0
        return self._delivered - delivered

    def _shut_down(self) -> None:
        for each in self._endpoints:
            each.close()
        self._executor.shutdown()
        self.ros_node.destroy_node()
        self._context.shutdown()


def _new_gid(endpoints: tuple[Endpoint, ...], known: set[bytes]) -> bytes:
    """Return the gid of the endpoint just created, which rclpy does not return."""
    return next((each.gid for each in endpoints if each.own and each.gid not in known), b"")


def _find_class(type_name: str) -> Any:
    """Return the Python class of a type. `Messages` has checked the name, so that it is safe to import."""
    package, _, name = type_name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ModuleNotFoundError, AttributeError) as error:
        debian = "ros-$ROS_DISTRO-" + package.replace("_", "-")
        raise Unavailable(f"this ROS 2 has no {type_name} ({error}): sudo apt install {debian}") from error


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(
            f"transport=rclpy needs the Python package rclpy of ROS 2, which cannot be imported ({error}): source "
            "/opt/ros/<release>/setup.bash first, with a Python that this release supports, or use transport=dds"
        ) from error
