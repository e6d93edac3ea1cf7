"""DDS discovery: types and QoS that it compares, endpoints, and the announcement of nodes that ROS 2 adds to it."""

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
from cyclonedds.builtin import BuiltinDataReader, BuiltinTopicDcpsPublication, BuiltinTopicDcpsSubscription
from cyclonedds.core import InstanceState, Policy, ReadCondition, SampleState, ViewState
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct, make_idl_struct, types
from cyclonedds.idl.annotations import final
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from embodied_rl.deployment.transport import raw_cdr
from embodied_rl.deployment.transport.interface import Endpoint
from embodied_rl.deployment.transport.messages import ARRAY, BASE, NAME, MessageError, Messages
from embodied_rl.deployment.transport.names import name_dds_topic, name_dds_type, read_dds_type
from embodied_rl.deployment.transport.qos import PROFILES, QoS

log = logging.getLogger(__name__)

MAX_ENDPOINTS = 4096
"""Publishers, or subscriptions, of a domain that are read."""
GID_LENGTH = 16
GID_BYTES = {"humble": 24}
"""Bytes of rmw_dds_common/msg/Gid: 16 since Iron."""
_INFO, _INFO_TOPIC = "rmw_dds_common/msg/ParticipantEntitiesInfo", "ros_discovery_info"


MAX_BLOCKING_S = 0.1
"""Longest time that a reliable publisher waits for a slow subscription."""
_NUMBERS: dict[str, Any] = {"bool": bool, "string": str} | dict.fromkeys(("byte", "char", "octet"), types.uint8)
_NUMBERS |= {f"{kind}{bits}": getattr(types, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_NUMBERS |= {"float32": types.float32, "float64": types.float64}


class DdsTypes:
    """DDS types of messages, which discovery compares; they do not encode messages."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._made: dict[str, type[IdlStruct]] = {}

    def find(self, type_name: str) -> type[IdlStruct]:
        """Return the DDS type: final and without keys, as in ROS 2."""
        if type_name not in self._made:
            fields = {name: self._annotate(kind) for name, kind in self._messages.find_fields(type_name)}
            made = make_idl_struct(type_name.rpartition("/")[2] + "_", name_dds_type(type_name), fields)
            self._made[type_name] = final(made)
        return self._made[type_name]

    def _annotate(self, kind: Any) -> Any:
        what, detail = kind
        if what == BASE:
            name, bound = detail
            return types.bounded_str[bound] if name == "string" and bound else _NUMBERS[name]
        if what == NAME:
            return self.find(detail)
        inner, count = self._annotate(detail[0]), detail[1]
        if what == ARRAY:
            return types.array[inner, count]
        return types.sequence[inner, count] if count else types.sequence[inner]


def make_qos(qos: QoS, type_hash: str | None) -> Qos:
    """Return the DDS policies of an endpoint, including XCDR1 and the type hash."""
    blocking = Policy.Reliability.Reliable(duration(seconds=MAX_BLOCKING_S))
    history = Policy.History.KeepLast(qos.depth)
    policies: list[Any] = [
        blocking if qos.reliability == "reliable" else Policy.Reliability.BestEffort,
        Policy.Durability.TransientLocal if qos.durability == "transient_local" else Policy.Durability.Volatile,
        history,
        Policy.DataRepresentation(use_cdrv0_representation=True, use_xcdrv2_representation=False),
        Policy.WriterDataLifecycle(autodispose=False),  # as in rmw_cyclonedds
    ]
    if qos.durability == "transient_local":  # the default keeps only one message for late subscriptions
        policies.append(Policy.DurabilityService(0, history, -1, -1, -1))
    if qos.lifespan_s is not None:
        policies.append(Policy.Lifespan(duration(seconds=qos.lifespan_s)))
    if type_hash is not None:
        policies.append(Policy.Userdata(f"typehash={type_hash};".encode()))
    return Qos(*policies)


def read_qos(found: Qos) -> tuple[QoS, str | None]:
    """Return the QoS and the type hash that another endpoint announces; depth is not announced, and 1 here."""
    reliable = isinstance(found[Policy.Reliability], Policy.Reliability.Reliable)
    latched = found[Policy.Durability] != Policy.Durability.Volatile
    data = found[Policy.Userdata]
    _, _, rest = (bytes(data.data) if data else b"").partition(b"typehash=")
    text = rest.partition(b";")[0].decode("ascii", "replace")
    qos = QoS("reliable" if reliable else "best_effort", "transient_local" if latched else "volatile")
    return qos, text or None


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
        found = []
        for each in reader.read(MAX_ENDPOINTS, self._alive[reader]):
            if each.topic_name == name_dds_topic(topic):
                qos, type_hash = read_qos(each.qos)
                own, gid, kind = each.participant_key == self._own, each.key.bytes, read_dds_type(each.type_name)
                found.append(Endpoint(topic, kind, qos, gid, own, type_hash, self._names.get(gid, "")))
        return tuple(found)


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
