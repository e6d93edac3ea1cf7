"""Who is on a topic, and how others see this node: DDS discovery, and what ROS 2 adds to it."""

import logging
from collections.abc import Iterable

import numpy as np
from cyclonedds.builtin import (
    BuiltinDataReader,
    BuiltinTopicDcpsPublication,
    BuiltinTopicDcpsSubscription,
)
from cyclonedds.core import InstanceState, ReadCondition, SampleState, ViewState
from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

from embodied_rl.deployment.transport import raw_cdr
from embodied_rl.deployment.transport.dds_types import DdsTypes, make_qos, read_qos
from embodied_rl.deployment.transport.interface import Endpoint
from embodied_rl.deployment.transport.messages import MessageError, Messages
from embodied_rl.deployment.transport.names import name_dds_topic, read_dds_type
from embodied_rl.deployment.transport.qos import PROFILES, QoS

log = logging.getLogger(__name__)

MOST_ENDPOINTS = 4096
"""So many publishers, or subscriptions, of a domain are looked at."""
GID_LENGTH = 16
GID_BYTES = {"humble": 24}
"""Bytes that rmw_dds_common/msg/Gid has for an identifier: 16 since Iron."""
_INFO, _INFO_TOPIC = "rmw_dds_common/msg/ParticipantEntitiesInfo", "ros_discovery_info"


class Discovery:
    """The publishers and subscriptions of a domain, as Cyclone DDS has found them, and the nodes that they belong to.

    Args:
        participant: of DDS.
        messages, types: the types of messages, and what DDS makes of them.
    """

    def __init__(self, participant: DomainParticipant, messages: Messages, types: DdsTypes) -> None:
        self._own, self._messages = participant.guid, messages
        alive = ViewState.Any | SampleState.Any | InstanceState.Alive
        self._publishers = BuiltinDataReader(participant, BuiltinTopicDcpsPublication)
        self._subscriptions = BuiltinDataReader(participant, BuiltinTopicDcpsSubscription)
        self._alive = {each: ReadCondition(each, alive) for each in (self._publishers, self._subscriptions)}
        qos = make_qos(QoS("reliable", "transient_local", depth=MOST_ENDPOINTS), messages.hash_type(_INFO))
        self._nodes = DataReader(participant, Topic(participant, _INFO_TOPIC, types.find(_INFO)), qos)
        self._names: dict[bytes, str] = {}

    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        """Return the publishers of a topic of ROS 2."""
        return self._read(self._publishers, topic)

    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        """Return the subscriptions of a topic of ROS 2."""
        return self._read(self._subscriptions, topic)

    def _read(self, reader: BuiltinDataReader, topic: str) -> tuple[Endpoint, ...]:
        self._read_nodes()
        found = []
        for each in reader.read(MOST_ENDPOINTS, self._alive[reader]):
            if each.topic_name == name_dds_topic(topic):
                qos, type_hash = read_qos(each.qos)
                own, gid, kind = each.participant_key == self._own, each.key.bytes, read_dds_type(each.type_name)
                found.append(Endpoint(topic, kind, qos, gid, own, type_hash, self._names.get(gid, "")))
        return tuple(found)

    def _read_nodes(self) -> None:
        """Learn which ends belong to which nodes, as far as these have told it."""
        if len(self._names) > 4 * MOST_ENDPOINTS:  # of nodes that came and went
            self._names.clear()
        for raw, *_ in raw_cdr.take(self._nodes, MOST_ENDPOINTS):
            try:
                info = self._messages.decode(_INFO, raw)
            except MessageError as error:
                log.warning("%s: %s", _INFO_TOPIC, error)
                continue
            for node in info.node_entities_info_seq:
                name = node.node_namespace.rstrip("/") + "/" + node.node_name
                ends = (*node.reader_gid_seq, *node.writer_gid_seq)
                self._names.update({bytes(each.data[:GID_LENGTH]): name for each in ends})


class Announcement:
    """Tells ROS 2 that this participant is a node, and which ends are its own, so that `ros2 node` shows it.

    Args:
        participant: of DDS.
        messages, types: the types of messages, and what DDS makes of them.
        node: its name.
    """

    def __init__(self, participant: DomainParticipant, messages: Messages, types: DdsTypes, node: str) -> None:
        self._messages, self._node = messages, node
        self._participant = participant.guid.bytes
        topic = Topic(participant, _INFO_TOPIC, types.find(_INFO))
        qos = make_qos(PROFILES["latched"].offered, messages.hash_type(_INFO))
        self._writer = DataWriter(participant, topic, qos)

    def publish(self, publishers: Iterable[bytes], subscriptions: Iterable[bytes]) -> None:
        """Publish which ends the node has, by their identifiers."""
        make = self._messages.make
        ends = make(
            "rmw_dds_common/msg/NodeEntitiesInfo",
            node_namespace="/",
            node_name=self._node,
            reader_gid_seq=[self._gid(each) for each in subscriptions],
            writer_gid_seq=[self._gid(each) for each in publishers],
        )
        info = make(_INFO, gid=self._gid(self._participant), node_entities_info_seq=[ends])
        raw_cdr.write(self._writer, self._messages.encode(_INFO, info))

    def _gid(self, identifier: bytes) -> object:
        size = GID_BYTES.get(self._messages.distro, GID_LENGTH)
        data = np.frombuffer(identifier.ljust(size, b"\0"), dtype=np.uint8)
        return self._messages.make("rmw_dds_common/msg/Gid", data=data)
