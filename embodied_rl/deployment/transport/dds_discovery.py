"""DDS discovery, and the announcement of nodes that ROS 2 adds to it."""

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

MAX_ENDPOINTS = 4096
"""Publishers, or subscriptions, of a domain that are read."""
GID_LENGTH = 16
GID_BYTES = {"humble": 24}
"""Bytes of rmw_dds_common/msg/Gid: 16 since Iron."""
_INFO, _INFO_TOPIC = "rmw_dds_common/msg/ParticipantEntitiesInfo", "ros_discovery_info"


class Discovery:
    """The publishers and subscriptions that Cyclone DDS has discovered in a domain, with their nodes."""

    def __init__(self, participant: DomainParticipant, messages: Messages, types: DdsTypes) -> None:
        self._own, self._messages = participant.guid, messages
        alive = ViewState.Any | SampleState.Any | InstanceState.Alive
        self._publishers = BuiltinDataReader(participant, BuiltinTopicDcpsPublication)
        self._subscriptions = BuiltinDataReader(participant, BuiltinTopicDcpsSubscription)
        self._alive = {each: ReadCondition(each, alive) for each in (self._publishers, self._subscriptions)}
        qos = make_qos(QoS("reliable", "transient_local", depth=MAX_ENDPOINTS), messages.hash_type(_INFO))
        self._nodes = DataReader(participant, Topic(participant, _INFO_TOPIC, types.find(_INFO)), qos)
        self._names: dict[bytes, str] = {}

    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        """Return the publishers of a ROS 2 topic."""
        return self._read(self._publishers, topic)

    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        """Return the subscriptions of a ROS 2 topic."""
        return self._read(self._subscriptions, topic)

    def _read(self, reader: BuiltinDataReader, topic: str) -> tuple[Endpoint, ...]:
        self._read_nodes()
        found = []
        for each in reader.read(MAX_ENDPOINTS, self._alive[reader]):
            if each.topic_name == name_dds_topic(topic):
                qos, type_hash = read_qos(each.qos)
                own, gid, kind = each.participant_key == self._own, each.key.bytes, read_dds_type(each.type_name)
                found.append(Endpoint(topic, kind, qos, gid, own, type_hash, self._names.get(gid, "")))
        return tuple(found)

    def _read_nodes(self) -> None:
        """Update the names of the nodes of endpoints from their announcements."""
        if len(self._names) > 4 * MAX_ENDPOINTS:  # includes nodes that have disconnected
            self._names.clear()
        for raw, *_ in raw_cdr.take(self._nodes, MAX_ENDPOINTS):
            try:
                info = self._messages.decode(_INFO, raw)
            except MessageError as error:
                log.warning("%s: %s", _INFO_TOPIC, error)
                continue
            for node in info.node_entities_info_seq:
                name = node.node_namespace.rstrip("/") + "/" + node.node_name
                gids = (*node.reader_gid_seq, *node.writer_gid_seq)
                self._names.update({bytes(each.data[:GID_LENGTH]): name for each in gids})


class Announcement:
    """Publisher of this node's name and endpoints on ros_discovery_info, which `ros2 node` shows."""

    def __init__(self, participant: DomainParticipant, messages: Messages, types: DdsTypes, node: str) -> None:
        self._messages, self._node = messages, node
        self._participant = participant.guid.bytes
        topic = Topic(participant, _INFO_TOPIC, types.find(_INFO))
        qos = make_qos(PROFILES["latched"].offered, messages.hash_type(_INFO))
        self._writer = DataWriter(participant, topic, qos)

    def publish(self, publishers: Iterable[bytes], subscriptions: Iterable[bytes]) -> None:
        """Publish the gids of the node's publishers and subscriptions."""
        make = self._messages.make
        entities = make(
            "rmw_dds_common/msg/NodeEntitiesInfo",
            node_namespace="/",
            node_name=self._node,
            reader_gid_seq=[self._gid(each) for each in subscriptions],
            writer_gid_seq=[self._gid(each) for each in publishers],
        )
        info = make(_INFO, gid=self._gid(self._participant), node_entities_info_seq=[entities])
        raw_cdr.write(self._writer, self._messages.encode(_INFO, info))

    def _gid(self, identifier: bytes) -> object:
        size = GID_BYTES.get(self._messages.distro, GID_LENGTH)
        data = np.frombuffer(identifier.ljust(size, b"\0"), dtype=np.uint8)
        return self._messages.make("rmw_dds_common/msg/Gid", data=data)
