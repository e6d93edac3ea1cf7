"""A deterministic transport within one process, with an injected clock, for tests and lockstep control.

It follows DDS: QoS and types must match, a slow subscription keeps the newest `depth` messages, late subscriptions get
the messages of latched topics, messages older than their lifespan are not delivered. Messages are passed as CDR bytes,
so that endpoints share no memory. Everything runs in the thread that spins.
"""

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from embodied_rl.deployment.transport.interface import Callback, Endpoint, Publisher, Subscription, Transport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.qos import QoS, find_incompatible
from embodied_rl.interfaces.errors import TransportError


@dataclass(frozen=True)
class _Sample:
    number: int
    raw: bytes
    source_ns: int
    lifespan_ns: int | None
    publisher: bytes

    def expired(self, now_ns: int) -> bool:
        return self.lifespan_ns is not None and now_ns - self.source_ns > self.lifespan_ns


@dataclass
class Bus:
    """The clock and the endpoints that the transports of one process share.

    Attributes:
        clock: returns nanoseconds since 1970; it may stand still.
    """

    clock: Callable[[], int]
    messages: Messages = field(default_factory=Messages)
    publishers: list["InProcessPublisher"] = field(default_factory=list)
    subscriptions: list["InProcessSubscription"] = field(default_factory=list)
    sent: int = 0
    endpoints: int = 0

    def new_gid(self) -> bytes:
        """Return a new identifier of an endpoint: 16 bytes."""
        self.endpoints += 1
        return hashlib.blake2b(str(self.endpoints).encode(), digest_size=16).digest()


class InProcessPublisher(Publisher):
    """A publisher on a bus."""

    def __init__(self, transport: "InProcessTransport", topic: str, type_name: str, qos: QoS) -> None:
        super().__init__(transport, topic, type_name, qos, transport.bus.new_gid())
        self._bus, self.past = transport.bus, deque[_Sample](maxlen=qos.depth)

    def send(self, raw: bytes) -> None:
        if self not in self._bus.publishers:
            raise TransportError(f"{self.topic}: this publisher is closed")
        lifespan = None if self.qos.lifespan_s is None else int(self.qos.lifespan_s * 1e9)
        self._bus.sent += 1
        sample = _Sample(self._bus.sent, bytes(raw), self._bus.clock(), lifespan, self.gid)
        if self.qos.durability == "transient_local":
            self.past.append(sample)
        for subscription in self._bus.subscriptions:
            if _match(self, subscription):
                subscription.waiting.append(sample)

    def count_matched(self) -> int:
        return sum(_match(self, each) for each in self._bus.subscriptions)

    def close(self) -> None:
        if self in self._bus.publishers:
            self._bus.publishers.remove(self)


class InProcessSubscription(Subscription):
    """A subscription on a bus."""

    def __init__(
        self, transport: "InProcessTransport", topic: str, type_name: str, qos: QoS, callback: Callback, raw: bool
    ) -> None:
        super().__init__(transport, topic, type_name, qos, callback, transport.bus.new_gid(), raw)
        self._bus, self.waiting = transport.bus, deque[_Sample](maxlen=qos.depth)

    def count_matched(self) -> int:
        return sum(_match(each, self) for each in self._bus.publishers)

    def close(self) -> None:
        self.waiting.clear()
        if self in self._bus.subscriptions:
            self._bus.subscriptions.remove(self)


class InProcessTransport(Transport):
    """One node on a bus."""

    kind = "in_process"

    def __init__(self, bus: Bus, node: str = "embodied_rl") -> None:
        super().__init__(bus.messages, node)
        self.bus = bus

    def _create_publisher(self, topic: str, type_name: str, qos: QoS) -> Publisher:
        publisher = InProcessPublisher(self, topic, type_name, qos)
        self.bus.publishers.append(publisher)
        return publisher

    def _create_subscription(self, topic: str, type_name: str, qos: QoS, callback: Callback, raw: bool) -> Subscription:
        subscription = InProcessSubscription(self, topic, type_name, qos, callback, raw)
        self.bus.subscriptions.append(subscription)
        if qos.durability == "transient_local":
            past = [one for each in self.bus.publishers if _match(each, subscription) for one in each.past]
            subscription.waiting.extend(sorted(past, key=lambda sample: sample.number))
        return subscription

    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        return tuple(self._describe(each) for each in self.bus.publishers if each.topic == topic)

    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        return tuple(self._describe(each) for each in self.bus.subscriptions if each.topic == topic)

    def _describe(self, each: InProcessPublisher | InProcessSubscription) -> Endpoint:
        own, node = each.transport is self, "/" + each.transport.node
        return Endpoint(each.topic, each.type_name, each.qos, each.gid, own, each.type_hash, node)

    def now(self) -> int:
        return self.bus.clock()

    def _spin_once(self, timeout_s: float) -> int:
        """Run callbacks in the order of publishing, without waiting."""
        mine = [each for each in self.bus.subscriptions if each.transport is self]
        arrived = sorted(
            ((sample, each) for each in mine for sample in each.waiting),
            key=lambda pair: (pair[0].number, mine.index(pair[1])),
        )
        for each in mine:
            each.waiting.clear()
        delivered = 0
        for sample, each in arrived:
            now = self.now()
            # a callback may close a subscription, or advance the clock
            if each in self.bus.subscriptions and not sample.expired(now):
                delivered += each.deliver(sample.raw, now, sample.source_ns, sample.publisher)
        return delivered

    def spin_until(self, condition: Callable[[], bool], timeout_s: float = 0.0) -> bool:
        """Spin until `condition()` holds; return False if no messages are left."""
        while not condition():
            if not any(each.waiting for each in self.bus.subscriptions if each.transport is self):
                return False
            self.spin_once()
        return True

    def start(self) -> None:
        raise TransportError("an in-process transport has no thread: call spin_once or spin_until")

    def _shut_down(self) -> None:
        for each in (*self.bus.publishers, *self.bus.subscriptions):
            if each.transport is self:
                each.close()


def _match(publisher: InProcessPublisher, subscription: InProcessSubscription) -> bool:
    same = publisher.topic == subscription.topic and publisher.type_name == subscription.type_name
    return same and find_incompatible(publisher.qos, subscription.qos) is None
