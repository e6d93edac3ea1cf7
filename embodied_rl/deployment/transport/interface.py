"""The interface of a transport: publishers, subscriptions, discovery and spinning.

Callbacks run only in `spin_once`, in `spin_until`, or in the thread that `start` starts. Messages of one publisher on
one topic arrive in the order of publishing; the order between topics is undefined.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from embodied_rl.deployment.transport.messages import MessageError, Messages
from embodied_rl.deployment.transport.names import check_node, check_topic
from embodied_rl.deployment.transport.qos import QoS, find_incompatible, offer, request
from embodied_rl.interfaces.errors import TransportError

log = logging.getLogger(__name__)

Callback = Callable[[Any, int, int], None]
"""(message, time received, time published): nanoseconds since 1970 by the receiver's and the publisher's clock."""
SPIN_TIMEOUT_S = 0.1
"""Longest wait of one `spin_once` of the spinning thread, and so the delay until it notices `close`."""
POLL_INTERVAL_S = 0.001
"""Interval at which `spin_until` checks its condition while another thread spins."""


@dataclass(frozen=True)
class Endpoint:
    """A publisher or subscription found on a topic by discovery.

    Attributes:
        qos: offered or requested QoS; policies that are not announced have defaults.
        gid: globally unique identifier.
        own: whether it belongs to this transport.
        type_hash: of the type's definition (RIHS01), if announced.
        node: full name of its node, such as /teleop; empty if not known yet.
    """

    topic: str
    type_name: str
    qos: QoS
    gid: bytes
    own: bool
    type_hash: str | None = None
    node: str = ""


class _OwnEndpoint(ABC):
    """A publisher or subscription of this process."""

    def __init__(self, transport: "Transport", topic: str, type_name: str, qos: QoS, gid: bytes) -> None:
        self.transport, self.topic, self.type_name, self.qos, self.gid = transport, topic, type_name, qos, gid
        self.type_hash = transport.messages.hash_type(type_name)

    @abstractmethod
    def count_matched(self) -> int:
        """Return the number of matched endpoints of the other kind."""

    @abstractmethod
    def close(self) -> None:
        """Remove the endpoint from its topic. May be called repeatedly."""

    @abstractmethod
    def find_mismatches(self) -> tuple[str, ...]:
        """Return one line per endpoint of the other kind on the topic that does not match, with the reason."""


class Publisher(_OwnEndpoint):
    """One publisher of a topic."""

    def publish(self, message: Any) -> None:
        """Publish a message of the topic's type.

        Raises:
            MessageError: it has another type, or a value does not fit its field. TransportError: it could not be sent,
                for example because a reliable subscription did not take it within 100 ms.
        """
        self.send(self.transport.messages.encode(self.type_name, message))

    @abstractmethod
    def send(self, raw: bytes) -> None:
        """Publish CDR bytes without encoding, such as those of a recording."""

    def other_publishers(self) -> tuple[Endpoint, ...]:
        """Return the other publishers of the topic."""
        known = bool(self.gid)  # unknown with some rclpy releases: then publishers of the own node count as this one
        others = self.transport.list_publishers(self.topic)
        return tuple(each for each in others if not each.own or (known and each.gid != self.gid))

    def find_mismatches(self) -> tuple[str, ...]:
        others = self.transport.list_subscriptions(self.topic)
        return tuple(filter(None, (_explain_mismatch(self.topic, self, other) for other in others)))


class Subscription(_OwnEndpoint):
    """One subscription of a topic.

    Attributes:
        received: number of messages passed to the callback.
        refused: number of messages discarded because their bytes do not decode as the topic's type.
        last_refusal: reason of the last of these.
        publisher: while the callback runs, the publisher of the message: the gid of its `Endpoint`, or other unique
            bytes; None if the transport does not identify publishers.
    """

    publisher: bytes | None = None

    def __init__(
        self, transport: "Transport", topic: str, type_name: str, qos: QoS, callback: Callback, gid: bytes, raw: bool
    ) -> None:
        super().__init__(transport, topic, type_name, qos, gid)
        self.received = self.refused = 0
        self.last_refusal = ""
        self._callback, self._raw = callback, raw

    def find_mismatches(self) -> tuple[str, ...]:
        others = self.transport.list_publishers(self.topic)
        return tuple(filter(None, (_explain_mismatch(self.topic, other, self) for other in others)))

    def deliver(self, raw: bytes, received_ns: int, source_ns: int, publisher: bytes | None = None) -> bool:
        """Decode a message and run the callback; return False if decoding failed. Called by transports."""
        try:
            message = raw if self._raw else self.transport.messages.decode(self.type_name, raw)
        except MessageError as error:
            self.refused += 1
            self.last_refusal = f"{self.topic}: {error}"
            if self.refused & (self.refused - 1) == 0:  # log the 1st, 2nd, 4th, 8th … only, to bound the log
                log.warning("%s (refused so far: %d)", self.last_refusal, self.refused)
            return False
        self.received += 1
        self.publisher = publisher
        self._callback(message, received_ns, source_ns)
        return True


class Transport(ABC):
    """A node, by its name, that publishes and subscribes to topics."""

    kind = ""
    """Name of the transport for `open_transport`."""
    identifies_publishers = True
    """Whether `Subscription.publisher` is set while a callback runs."""

    def __init__(self, messages: Messages, node: str) -> None:
        self.messages, self.node, self.closed = messages, check_node(node), False
        self.failure: BaseException | None = None
        """Exception of a callback in the spinning thread; `close` raises it."""
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def create_publisher(self, topic: str, type_name: str, qos: QoS | str = "state") -> Publisher:
        """Return a new publisher.

        Args:
            topic: full name. type_name: such as sensor_msgs/msg/JointState. qos: QoS, or the name of a profile.

        Raises:
            UserError: invalid topic name, unknown type or profile.
        """
        self._check_open()
        self.messages.find_class(type_name)
        return self._create_publisher(check_topic(topic), type_name, offer(qos))

    def create_subscription(
        self, topic: str, type_name: str, qos: QoS | str, callback: Callback, raw: bool = False
    ) -> Subscription:
        """Return a new subscription; see `create_publisher`. With `raw` the callback gets undecoded CDR bytes."""
        self._check_open()
        self.messages.find_class(type_name)
        return self._create_subscription(check_topic(topic), type_name, request(qos), callback, raw)

    @abstractmethod
    def _create_publisher(self, topic: str, type_name: str, qos: QoS) -> Publisher: ...

    @abstractmethod
    def _create_subscription(
        self, topic: str, type_name: str, qos: QoS, callback: Callback, raw: bool
    ) -> Subscription: ...

    @abstractmethod
    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        """Return the publishers of a topic, own ones included."""

    @abstractmethod
    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        """Return the subscriptions of a topic, own ones included."""

    @abstractmethod
    def now(self) -> int:
        """Return the time of the clock that stamps messages, in nanoseconds since 1970."""

    def spin_once(self, timeout_s: float = 0.0) -> int:
        """Run callbacks for waiting messages and return their number. Wait up to `timeout_s` for the first message.

        Raises:
            TransportError: a thread started by `start` spins, or the transport is closed.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            raise TransportError(f"{self.node} already spins in a thread")
        self._check_open()
        return self._spin_once(timeout_s)

    @abstractmethod
    def _spin_once(self, timeout_s: float) -> int: ...

    def spin_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Spin until `condition()` holds; return False if it does not within `timeout_s`.

        After `start` the thread spins, and this method only polls the condition.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._thread is None:
                self.spin_once(min(left, SPIN_TIMEOUT_S))
            else:
                time.sleep(min(left, POLL_INTERVAL_S))
        return True

    def start(self) -> None:
        """Start a thread that spins until `close`; raises TransportError: it runs already."""
        if self._thread is not None:
            raise TransportError(f"{self.node} already spins in a thread")
        self._thread = threading.Thread(target=self._spin, name=f"{self.node} spins", daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        try:
            while not self._ending.is_set():
                self.spin_once(SPIN_TIMEOUT_S)
        except BaseException as error:  # `close` raises it
            log.exception("%s stopped spinning", self.node)
            self.failure = error

    def close(self) -> None:
        """Stop spinning and remove all endpoints. May be called repeatedly.

        Raises:
            TransportError: the thread does not end. Otherwise the exception of a callback in that thread.
        """
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)
        if not self.closed:
            self._shut_down()
            self.closed = True
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            raise TransportError(f"{self.node}: a callback has not returned for 5 s")
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    @abstractmethod
    def _shut_down(self) -> None: ...

    def _check_open(self) -> None:
        if self.closed:
            raise TransportError(f"{self.node} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _explain_mismatch(topic: str, publisher: Publisher | Endpoint, subscription: Subscription | Endpoint) -> str | None:
    if publisher.type_name != subscription.type_name:
        return f"{topic}: the publisher's type is {publisher.type_name}, the subscription's {subscription.type_name}"
    offered, requested = publisher.type_hash, subscription.type_hash
    if offered is not None and requested is not None and offered != requested:
        return f"{topic}: both endpoints have type {publisher.type_name}, but with different definitions"
    reason = find_incompatible(publisher.qos, subscription.qos)
    return None if reason is None else f"{topic}: no message arrives, because {reason}"
