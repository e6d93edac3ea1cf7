"""Convert message types and QoS between ROS 2 and Cyclone DDS."""

from typing import Any

from cyclonedds.core import Policy
from cyclonedds.idl import IdlStruct, make_idl_struct, types
from cyclonedds.idl.annotations import final
from cyclonedds.qos import Qos
from cyclonedds.util import duration

from embodied_rl.deployment.transport.messages import ARRAY, BASE, NAME, Messages
from embodied_rl.deployment.transport.names import name_dds_type
from embodied_rl.deployment.transport.qos import QoS

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
