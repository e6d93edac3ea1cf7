"""The interface of a transport: publishers, subscriptions, who else is on a topic, and when callbacks run.

Callbacks run where somebody spins: in `spin_once` and `spin_until`, or in the thread that `start` starts. Nothing else
calls them. Within a topic messages of one publisher arrive in the order in which they were published; between topics
no order is promised.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from embodied_rl.deployment.transport.messages import MessageError, Messages
from embodied_rl.deployment.transport.names import check_topic
from embodied_rl.deployment.transport.qos import QoS, find_incompatible, offer, request
from embodied_rl.interfaces.errors import TransportError

log = logging.getLogger(__name__)

Callback = Callable[[Any, int, int], None]
"""(message, when it was received, when it was published): nanoseconds since 1970 by the clocks of the two ends."""
LONGEST_WAIT_S = 0.1
"""A thread that spins looks so often whether it is to end."""


LOOKING_S = 0.001
"""Who waits for what another thread does looks so often."""


@dataclass(frozen=True)
class Endpoint:
    """A publisher or subscription that was seen on a topic.

    Attributes:
        topic, type_name: as ROS 2 writes them.
        qos: what it offers or requests, as far as it is known.
        gid: its globally unique identifier.
        own: it belongs to this transport.
        type_hash: of its type's definition (RIHS01), where it says so.
        node: the full name of its node, such as /teleop; empty where that is not known, yet.
    """

    topic: str
    type_name: str
    qos: QoS
    gid: bytes
    own: bool
    type_hash: str | None = None
    node: str = ""


class Publisher(ABC):
    """One publisher of a topic."""

    def __init__(self, transport: "Transport", topic: str, type_name: str, qos: QoS, gid: bytes) -> None:
        self.transport, self.topic, self.type_name, self.qos, self.gid = transport, topic, type_name, qos, gid
        self.type_hash = transport.messages.hash_type(type_name)

    def publish(self, message: Any) -> None:
        """Publish a message of the topic's type.

        Raises:
            MessageError: it is of another type, or a value does not fit. TransportError: it could not be sent, such as
                a reliable message that nobody took within 100 ms.
        """
        self.send(self.transport.messages.encode(self.type_name, message))

    @abstractmethod
    def send(self, raw: bytes) -> None:
        """Publish CDR bytes as they are, such as those of a recording."""

    @abstractmethod
    def count_matched(self) -> int:
        """Return how many subscriptions get its messages."""

    @abstractmethod
    def close(self) -> None:
        """Leave the topic; harmless if that was done before."""

    def find_rivals(self) -> tuple[Endpoint, ...]:
        """Return every other publisher that is on its topic: a robot must not be given commands by two."""
        known = bool(self.gid)  # rclpy may not tell it; then what is its node's own is taken for this one
        others = self.transport.list_publishers(self.topic)
        return tuple(each for each in others if not each.own or (known and each.gid != self.gid))

    def find_faults(self) -> tuple[str, ...]:
        """Return why subscriptions that are on the topic get no message of this publisher, one line each."""
        others = self.transport.list_subscriptions(self.topic)
        return tuple(filter(None, (_compare(self.topic, self, other) for other in others)))


class Subscription(ABC):
    """One subscription of a topic.

    Attributes:
        received: messages that were given to the callback.
        refused: messages that were thrown away because their bytes are none of the topic's type.
        last_refusal: what was wrong with the last of these.
        publisher: while the callback runs, who published its message: the identifier of an `Endpoint`, or other bytes
            that tell publishers apart; None where the transport cannot.
    """

    publisher: bytes | None = None

    def __init__(
        self, transport: "Transport", topic: str, type_name: str, qos: QoS, callback: Callback, gid: bytes, raw: bool
    ) -> None:
        self.transport, self.topic, self.type_name, self.qos, self.gid = transport, topic, type_name, qos, gid
        self.type_hash = transport.messages.hash_type(type_name)
        self.received = self.refused = 0
        self.last_refusal = ""
        self._callback, self._raw = callback, raw

    @abstractmethod
    def count_matched(self) -> int:
        """Return how many publishers reach it."""

    @abstractmethod
    def close(self) -> None:
        """Leave the topic; harmless if that was done before."""

    def find_faults(self) -> tuple[str, ...]:
        """Return why publishers that are on the topic do not reach this subscription, one line each."""
        others = self.transport.list_publishers(self.topic)
        return tuple(filter(None, (_compare(self.topic, other, self) for other in others)))

    def deliver(self, raw: bytes, received_ns: int, source_ns: int, publisher: bytes | None = None) -> bool:
        """Decode a message and call back; return False if its bytes were refused. For transports alone."""
        try:
            message = raw if self._raw else self.transport.messages.decode(self.type_name, raw)
        except MessageError as error:
            self._refuse(error)
            return False
        self.received += 1
        self.publisher = publisher
        self._callback(message, received_ns, source_ns)
        return True

    def _refuse(self, error: MessageError) -> None:
        self.refused += 1
        self.last_refusal = f"{self.topic}: {error}"
        if self.refused & (self.refused - 1) == 0:  # the 1st, 2nd, 4th, 8th …: a stranger does not fill the log
            log.warning("%s (refused so far: %d)", self.last_refusal, self.refused)


class Transport(ABC):
    """A node of ROS 2, or what stands for one.

    Args:
        messages: the types of messages.
        node: its name.
    """

    kind = ""
    """Its name for `open_transport`."""
    tells_publishers = True
    """Whether a callback can know who published its message, see `Subscription.publisher`."""

    def __init__(self, messages: Messages, node: str) -> None:
        self.messages, self.node = messages, node
        self.failure: BaseException | None = None
        """What a callback raised in the thread that spins; `close` raises it."""
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def create_publisher(self, topic: str, type_name: str, qos: QoS | str = "state") -> Publisher:
        """Return a new publisher.

        Args:
            topic: its full name.
            type_name: such as sensor_msgs/msg/JointState.
            qos: a quality, or the name of a profile.

        Raises:
            UserError: a name that is not allowed, an unknown type or profile.
        """
        self.messages.find_class(type_name)
        return self._publish(check_topic(topic), type_name, offer(qos))

    def create_subscription(
        self, topic: str, type_name: str, qos: QoS | str, callback: Callback, raw: bool = False
    ) -> Subscription:
        """Return a new subscription; `raw` gives the callback CDR bytes, which nobody has checked.

        Raises:
            UserError: a name that is not allowed, an unknown type or profile.
        """
        self.messages.find_class(type_name)
        return self._subscribe(check_topic(topic), type_name, request(qos), callback, raw)

    @abstractmethod
    def _publish(self, topic: str, type_name: str, qos: QoS) -> Publisher: ...

    @abstractmethod
    def _subscribe(self, topic: str, type_name: str, qos: QoS, callback: Callback, raw: bool) -> Subscription: ...

    @abstractmethod
    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        """Return every publisher that is seen on a topic, own ones included."""

    @abstractmethod
    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        """Return every subscription that is seen on a topic, own ones included."""

    @abstractmethod
    def now(self) -> int:
        """Return nanoseconds since 1970 by the clock that stamps messages."""

    def spin_once(self, timeout_s: float = 0.0) -> int:
        """Call back for what has arrived; return for how many messages. Wait up to `timeout_s` for the first.

        Raises:
            TransportError: the thread that `start` started spins, or the transport is closed.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            raise TransportError(f"{self.node} spins in a thread of its own")
        return self._spin_once(timeout_s)

    @abstractmethod
    def _spin_once(self, timeout_s: float) -> int: ...

    def spin_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Spin until `condition()` holds; return False if it does not within `timeout_s`.

        Where `start` has started a thread, that spins, and this waits.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._thread is None:
                self.spin_once(min(left, LONGEST_WAIT_S))
            else:
                time.sleep(min(left, LOOKING_S))
        return True

    def start(self) -> None:
        """Spin in a thread of its own, until `close`.

        Raises:
            TransportError: such a thread runs already.
        """
        if self._thread is not None:
            raise TransportError(f"{self.node} spins in a thread already")
        self._thread = threading.Thread(target=self._spin, name=f"{self.node} spins", daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        try:
            while not self._ending.is_set():
                self.spin_once(LONGEST_WAIT_S)
        except BaseException as error:  # raised by `close`, where somebody can hear it
            log.exception("%s stopped spinning", self.node)
            self.failure = error

    def close(self) -> None:
        """Stop spinning and leave the network; harmless if that was done before.

        Raises:
            TransportError: the thread does not end; otherwise what a callback raised in it.
        """
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)
        self._leave()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            raise TransportError(f"{self.node}: a callback has not returned for 5 s")
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    @abstractmethod
    def _leave(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _compare(topic: str, publisher: Publisher | Endpoint, subscription: Subscription | Endpoint) -> str | None:
    if publisher.type_name != subscription.type_name:
        return f"{topic}: the publisher's type is {publisher.type_name}, the subscription's {subscription.type_name}"
    offered, requested = publisher.type_hash, subscription.type_hash
    if offered is not None and requested is not None and offered != requested:
        return f"{topic}: both ends call their type {publisher.type_name}, but its definitions differ"
    reason = find_incompatible(publisher.qos, subscription.qos)
    return None if reason is None else f"{topic}: no message arrives, because {reason}"
