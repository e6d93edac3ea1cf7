"""A ROS 2 node over Cyclone DDS, without an installation of ROS 2.

Messages are encoded by `messages.py` and sent as bytes (`raw_cdr.py`). docs/ros2.md lists the DDS names and what was
compared with ROS 2. Only topics: the Python package of Cyclone DDS cannot send services.
"""

import threading
import time

from cyclonedds.core import (
    DDSException,
    GuardCondition,
    InstanceState,
    Policy,
    ReadCondition,
    SampleState,
    ViewState,
    WaitSet,
)
from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

from embodied_rl.deployment.transport import raw_cdr
from embodied_rl.deployment.transport.dds_discovery import Announcement, DdsTypes, Discovery, make_qos
from embodied_rl.deployment.transport.dds_domain import close_domain, open_domain
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.interface import Callback, Endpoint, Publisher, Subscription, Transport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.names import name_dds_topic
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import TransportError

MESSAGES_PER_SPIN = 64
"""Messages of one subscription that `spin_once` delivers at most."""


class DdsPublisher(Publisher):
    """A publisher over DDS."""

    def __init__(self, transport: "DdsTransport", topic: str, type_name: str, qos: QoS, writer: DataWriter) -> None:
        super().__init__(transport, topic, type_name, qos, writer.guid.bytes)
        self._node, self._writer = transport, writer

    def send(self, raw: bytes) -> None:
        try:
            raw_cdr.write(self._entity(), raw)
        except DDSException as error:
            late = error.code == DDSException.DDS_RETCODE_TIMEOUT
            reason = "a reliable subscription is too slow" if late else str(error)
            raise TransportError(f"{self.topic}: a message was not published: {reason}") from error

    def count_matched(self) -> int:
        return len(self._entity().get_matched_subscriptions())

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._node.remove(self)
            raw_cdr.delete(writer)

    def _entity(self) -> DataWriter:
        if self._writer is None or self._node.closed:
            raise TransportError(f"{self.topic}: this publisher is closed")
        return self._writer


class DdsSubscription(Subscription):
    """A subscription over DDS."""

    def __init__(
        self, transport: "DdsTransport", topic: str, type_name: str, qos: QoS, callback: Callback, reader: DataReader,
        raw: bool,
    ) -> None:  # fmt: skip
        super().__init__(transport, topic, type_name, qos, callback, reader.guid.bytes, raw)
        self._node, self._reader = transport, reader
        self.condition = ReadCondition(reader, ViewState.Any | SampleState.Any | InstanceState.Any)
        self._taking = threading.Lock()
        self._gids: dict[int, bytes] = {}

    def take(self) -> int:
        """Run callbacks for up to `MESSAGES_PER_SPIN` waiting messages; return their number."""
        with self._taking:
            arrived = [] if self._reader is None else raw_cdr.take(self._reader, MESSAGES_PER_SPIN)
            for new in {handle for *_, handle in arrived} - self._gids.keys():
                found = self._entity().get_matched_publication_data(new)  # None: it has disconnected already
                self._gids[new] = new.to_bytes(8, "big") if found is None else found.key.bytes
        received_ns = self._node.now()
        delivered = 0
        for raw, source_ns, handle in arrived:
            if self._reader is not None:  # a callback may close its subscription
                delivered += self.deliver(raw, received_ns, source_ns, self._gids[handle])
        return delivered

    def count_matched(self) -> int:
        return len(self._entity().get_matched_publications())

    def find_mismatches(self) -> tuple[str, ...]:
        """Return mismatches as `Subscription`; policies that `QoS` lacks, such as a deadline, by their number."""
        mismatches = super().find_mismatches()
        status = self._entity().get_requested_incompatible_qos_status()
        unexplained = len(self.transport.list_publishers(self.topic)) - len(mismatches) - self.count_matched()
        if not status.total_count or unexplained <= 0:
            return mismatches
        return (
            *mismatches,
            f"{self.topic}: {unexplained} publishers have incompatible QoS, policy {status.last_policy_id}",
        )

    def close(self) -> None:
        with self._taking:
            reader, self._reader = self._reader, None
        if reader is not None:
            self._node.remove(self)
            raw_cdr.delete(reader)

    def _entity(self) -> DataReader:
        if self._reader is None or self._node.closed:
            raise TransportError(f"{self.topic}: this subscription is closed")
        return self._reader


class DdsTransport(Transport):
    """A ROS 2 node over DDS; raises UserError, see `open_domain`.

    Args:
        messages: message types; by default those of the environment's release.
    """

    kind = "dds"

    def __init__(
        self, environment: RosEnvironment, node: str = "embodied_rl", messages: Messages | None = None
    ) -> None:
        super().__init__(messages or Messages(environment.distro), node)
        self.environment = environment
        self._publishers: list[DdsPublisher] = []
        self._subscriptions: list[DdsSubscription] = []
        self._topics: dict[tuple[str, str], Topic] = {}
        self._types = DdsTypes(self.messages)
        self._changing = threading.RLock()
        open_domain(environment)
        self._participant = DomainParticipant(environment.domain, Qos(Policy.Userdata(b"enclave=/;")))
        self.gid: bytes = self._participant.guid.bytes
        self._waiting, self._wake = WaitSet(self._participant), GuardCondition(self._participant)
        self._waiting.attach(self._wake)
        self._discovery = Discovery(self._participant, self.messages, self._types)
        self._announcement = Announcement(self._participant, self.messages, self._types, node)
        self._announce()

    def _create_publisher(self, topic: str, type_name: str, qos: QoS) -> Publisher:
        made = make_qos(qos, self.messages.hash_type(type_name))
        writer = DataWriter(self._participant, self._find_topic(topic, type_name), made)
        publisher = DdsPublisher(self, topic, type_name, qos, writer)
        with self._changing:
            self._publishers.append(publisher)
            self._announce()
        return publisher

    def _create_subscription(self, topic: str, type_name: str, qos: QoS, callback: Callback, raw: bool) -> Subscription:
        made = make_qos(qos, self.messages.hash_type(type_name))
        reader = DataReader(self._participant, self._find_topic(topic, type_name), made)
        subscription = DdsSubscription(self, topic, type_name, qos, callback, reader, raw)
        with self._changing:
            self._subscriptions.append(subscription)
            self._waiting.attach(subscription.condition)
            self._announce()
        self._wake.set(True)
        return subscription

    def _find_topic(self, topic: str, type_name: str) -> Topic:
        with self._changing:
            if (topic, type_name) not in self._topics:
                made = Topic(self._participant, name_dds_topic(topic), self._types.find(type_name))
                self._topics[topic, type_name] = made
            return self._topics[topic, type_name]

    def remove(self, endpoint: DdsPublisher | DdsSubscription) -> None:
        """Remove an endpoint that closes."""
        with self._changing:
            if isinstance(endpoint, DdsPublisher):
                self._publishers.remove(endpoint)
            else:
                self._subscriptions.remove(endpoint)
                self._waiting.detach(endpoint.condition)
            if not self.closed:
                self._announce()

    def _announce(self) -> None:
        self._announcement.publish((each.gid for each in self._publishers), (each.gid for each in self._subscriptions))

    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        self._check_open()
        return self._discovery.list_publishers(topic)

    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        self._check_open()
        return self._discovery.list_subscriptions(topic)

    def now(self) -> int:
        return time.time_ns()

    def _spin_once(self, timeout_s: float) -> int:
        if self._waiting.wait(int(max(timeout_s, 0.0) * 1e9)) == 0:
            return 0
        self._wake.take()
        return sum(each.take() for each in tuple(self._subscriptions))

    def _shut_down(self) -> None:
        for each in (*self._publishers, *self._subscriptions):
            each.close()
        raw_cdr.delete(self._participant)
        close_domain(self.environment.domain)
