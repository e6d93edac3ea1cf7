"""Who is on a topic, and how others see this node: DDS discovery, and what ROS 2 adds to it."""

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
from cyclonedds.topic import Topic

from embodied_rl.transport import raw_cdr
from embodied_rl.transport.dds_types import DdsTypes, make_qos, read_qos
from embodied_rl.transport.interface import Endpoint
from embodied_rl.transport.messages import Messages
from embodied_rl.transport.names import name_dds_topic, read_dds_type
from embodied_rl.transport.qos import PROFILES

MOST_ENDPOINTS = 4096
"""So many publishers, or subscriptions, of a domain are looked at."""
GID_BYTES = {"humble": 24}
"""Bytes of an identifier in rmw_dds_common/msg/Gid: 16 since Iron."""
_INFO = "rmw_dds_common/msg/ParticipantEntitiesInfo"


class Discovery:
    """The publishers and subscriptions of a domain, as Cyclone DDS has found them."""

    def __init__(self, participant: DomainParticipant) -> None:
        self._own = participant.guid
        alive = ViewState.Any | SampleState.Any | InstanceState.Alive
        self._publishers = BuiltinDataReader(participant, BuiltinTopicDcpsPublication)
        self._subscriptions = BuiltinDataReader(participant, BuiltinTopicDcpsSubscription)
        self._alive = {each: ReadCondition(each, alive) for each in (self._publishers, self._subscriptions)}

    def list_publishers(self, topic: str) -> tuple[Endpoint, ...]:
        """Return the publishers of a topic of ROS 2."""
        return self._read(self._publishers, topic)

    def list_subscriptions(self, topic: str) -> tuple[Endpoint, ...]:
        """Return the subscriptions of a topic of ROS 2."""
        return self._read(self._subscriptions, topic)

    def _read(self, reader: BuiltinDataReader, topic: str) -> tuple[Endpoint, ...]:
        found = []
        for each in reader.read(MOST_ENDPOINTS, self._alive[reader]):
            if each.topic_name == name_dds_topic(topic):
                qos, type_hash = read_qos(each.qos)
                own = each.participant_key == self._own
                found.append(Endpoint(topic, read_dds_type(each.type_name), qos, each.key.bytes, own, type_hash))
        return tuple(found)


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
        topic = Topic(participant, "ros_discovery_info", types.find(_INFO))
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
        size = GID_BYTES.get(self._messages.distro, 16)
        data = np.frombuffer(identifier.ljust(size, b"\0"), dtype=np.uint8)
        return self._messages.make("rmw_dds_common/msg/Gid", data=data)
