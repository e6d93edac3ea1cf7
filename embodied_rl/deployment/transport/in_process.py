"""A transport within one process: deterministic, with an injected clock. For tests and for control in lockstep.

It keeps the rules of DDS that programs depend on: what is requested must be offered, types must agree, the newest
`depth` messages wait for a slow subscription, latched topics have a past, messages older than their lifespan are not
delivered. Messages travel as CDR bytes, so that two ends share nothing. Time passes only where the clock says so, and
everything happens in the thread that spins.
"""

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from embodied_rl.deployment.transport.interface import (
    Callback,
    Endpoint,
    Publisher,
    Subscription,
    Transport,
)
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.names import check_node
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
    """What transports of one process have in common: the clock, the topics.

    Attributes:
        clock: nanoseconds since 1970; it may stand still.
        messages: the types of messages.
    """

    clock: Callable[[], int]
    messages: Messages = field(default_factory=Messages)
    publishers: list["InProcessPublisher"] = field(default_factory=list)
    subscriptions: list["InProcessSubscription"] = field(default_factory=list)
    sent: int = 0
    ends: int = 0

    def name_end(self) -> bytes:
        """Return the identifier of the next publisher or subscription: 16 bytes."""
        self.ends += 1
        return hashlib.blake2b(str(self.ends).encode(), digest_size=16).digest()


class InProcessPublisher(Publisher):
    """A publisher on a bus."""

    def __init__(self, transport: "InProcessTransport", topic: str, type_name: str, qos: QoS) -> None:
        super().__init__(transport, topic, type_name, qos, transport.bus.name_end())
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
            if _meet(self, subscription):
                subscription.waiting.append(sample)

    def count_matched(self) -> int:
        return sum(_meet(self, each) for each in self._bus.subscriptions)

    def close(self) -> None:
        if self in self._bus.publishers:
            self._bus.publishers.remove(self)


class InProcessSubscription(Subscription):
    """A subscription on a bus."""

    def __init__(
        self, transport: "InProcessTransport", topic: str, type_name: str, qos: QoS, callback: Callback, raw: bool
    ) -> None:
        super().__init__(transport, topic, type_name, qos, callback, transport.bus.name_end(), raw)
        self._bus, self.waiting = transport.bus, deque[_Sample](maxlen=qos.depth)

    def count_matched(self) -> int:
        return sum(_meet(each, self) for each in self._bus.publishers)

    def close(self) -> None:
        self.waiting.clear()
        if self in self._bus.subscriptions:
            self._bus.subscriptions.remove(self)


class InProcessTransport(Transport):
    """One node on a bus.

    Args:
        bus: what it shares with the others.
        node: its name.
    """

    kind = "in_process"

    def __init__(self, bus: Bus, node: str = "embodied_rl") -> None:
        super().__init__(bus.messages, check_node(node))
        self.bus = bus
        self._closed = False

    def _publish(self, topic: str, type_name: str, qos: QoS) -> Publisher:
        self._check_open()
        publisher = InProcessPublisher(self, topic, type_name, qos)
        self.bus.publishers.append(publisher)
        return publisher

    def _subscribe(self, topic: str, type_name: str, qos: QoS, callback: Callback, raw: bool) -> Subscription:
        self._check_open()
        subscription = InProcessSubscription(self, topic, type_name, qos, callback, raw)
        self.bus.subscriptions.append(subscription)
        if qos.durability == "transient_local":
            past = [one for each in self.bus.publishers if _meet(each, subscription) for one in each.past]
            subscription.waiting.extend(sorted(past, key=lambda sample: sample.number))
        return subscription

    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        return tuple(self._see(each) for each in self.bus.publishers if each.topic == topic)

    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        return tuple(self._see(each) for each in self.bus.subscriptions if each.topic == topic)

    def _see(self, end: InProcessPublisher | InProcessSubscription) -> Endpoint:
        own, node = end.transport is self, "/" + end.transport.node
        return Endpoint(end.topic, end.type_name, end.qos, end.gid, own, end.type_hash, node)

    def now(self) -> int:
        return self.bus.clock()

    def _spin_once(self, timeout_s: float) -> int:
        """Call back for what has arrived, in the order in which it was published; there is nothing to wait for."""
        self._check_open()
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
            if each in self.bus.subscriptions and not sample.expired(now):  # a callback may close one, or wait
                delivered += each.deliver(sample.raw, now, sample.source_ns, sample.publisher)
        return delivered

    def spin_until(self, condition: Callable[[], bool], timeout_s: float = 0.0) -> bool:
        """Spin until `condition()` holds, or nothing is left that could change it."""
        while not condition():
            if not any(each.waiting for each in self.bus.subscriptions if each.transport is self):
                return False
            self.spin_once()
        return True

    def start(self) -> None:
        raise TransportError("transports of one process have no threads: spin where the program is")

    def _leave(self) -> None:
        self._closed = True
        ends = [each for each in (*self.bus.publishers, *self.bus.subscriptions) if each.transport is self]
        for each in ends:
            each.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError(f"{self.node} is closed")


def _meet(publisher: InProcessPublisher, subscription: InProcessSubscription) -> bool:
    same = publisher.topic == subscription.topic and publisher.type_name == subscription.type_name
    return same and find_incompatible(publisher.qos, subscription.qos) is None
