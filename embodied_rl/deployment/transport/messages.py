"""Messages by type name: dataclasses, CDR encoding and type hashes, from the package rosbags.

All transports encode and decode here. Arrays of a decoded message are read-only views of the received bytes.
"""

import difflib
import struct
from functools import cache, cached_property
from typing import Any

import numpy as np

from embodied_rl.deployment.transport.extras import require
from embodied_rl.deployment.transport.names import check_type
from embodied_rl.interfaces.errors import UserError

DISTROS = {"humble": "ROS2_HUMBLE", "iron": "ROS2_IRON", "jazzy": "ROS2_JAZZY", "kilted": "ROS2_KILTED"}
"""Supported releases of ROS 2. The messages of Jazzy were compared with the release (docs/ros2.md)."""
MORE_TYPES = {"control_msgs/msg/GripperCommand": "float64 position\nfloat64 max_effort\n"}
"""Definitions that rosbags lacks: control_msgs/msg/GripperCommand.msg of ros-controls/control_msgs, the same in all
releases up to 6.8.0 (commit 13dacdd)."""
MAX_MESSAGE_BYTES = 64 * 2**20
"""Largest message that is decoded; a 4K image has 25 MB."""
_PYTHON_TYPES: dict[str, type[Any]] = {"string": str, "bool": bool, "float32": float, "float64": float}
BASE, NAME, ARRAY, SEQUENCE = 1, 2, 3, 4
"""Kinds of fields in rosbags: a number or text, a message, an array, a sequence."""


class MessageError(UserError):
    """Bytes do not decode as a type, or a message has values that do not fit its type."""


class Messages:
    """The message types of one release of ROS 2, a key of `DISTROS`; raises UserError, or Unavailable: no rosbags."""

    def __init__(self, distro: str = "jazzy") -> None:
        if distro not in DISTROS:
            raise UserError(f"ROS_DISTRO={distro!r} is none of {', '.join(DISTROS)}", code="ros-distro-unknown")
        require("rosbags", "ROS 2 messages")
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        self.distro = distro
        self._store = get_typestore(Stores[DISTROS[distro]])
        for name, definition in MORE_TYPES.items():
            self._store.register(get_types_from_msg(definition, name))

    def list_types(self) -> tuple[str, ...]:
        """Return the names of all types, sorted."""
        return tuple(sorted(self._store.fielddefs))

    def find_class(self, type_name: str) -> type[Any]:
        """Return the dataclass of a type; raise `UserError` if the release lacks the type."""
        return self._store.types[self._known(type_name)]

    def find_fields(self, type_name: str) -> list[tuple[str, Any]]:
        """Return (name, definition) of each field, in the order of the definition."""
        return self._store.fielddefs[self._known(type_name)][1]

    def make(self, type_name: str, /, **values: Any) -> Any:
        """Return a message with these values; other fields are zero or empty.

        Args:
            values: by field; numbers in any array-like, messages as dataclasses or dictionaries.

        Raises:
            UserError: unknown type or field. MessageError: a value does not fit its field.
        """
        kinds = dict(self.find_fields(type_name))
        unknown = next((name for name in values if name not in kinds), None)
        if unknown is not None:
            raise UserError(
                f"{type_name} has no field {unknown!r}; it has {', '.join(kinds)}", code="message-field-unknown"
            )
        made = {
            name: self._convert(kind, values[name], f"{type_name}.{name}") if name in values else self._empty(kind)
            for name, kind in kinds.items()
        }
        return self.find_class(type_name)(*made.values())

    def encode(self, type_name: str, message: Any) -> bytes:
        """Return the CDR bytes of a message, little-endian, with their header of 4 bytes.

        Raises:
            UserError: unknown type. MessageError: `message` has another type, or a value does not fit.
        """
        kind = self.find_class(type_name)
        found = getattr(message, "__msgtype__", type(message).__name__)
        if found != kind.__msgtype__:
            raise MessageError(f"expected a message of {type_name}, got {found}", code="message-type-mismatch")
        try:
            return bytes(self._store.serialize_cdr(message, type_name, little_endian=True))
        except (_serde_error(), struct.error, ValueError, TypeError, AttributeError) as error:
            raise MessageError(f"{type_name} cannot be encoded: {error}", code="message-invalid") from error

    def decode(self, type_name: str, raw: bytes) -> Any:
        """Decode CDR bytes, which need not be trusted; raises `MessageError`, or UserError: unknown type."""
        self._known(type_name)
        if len(raw) > MAX_MESSAGE_BYTES:
            raise MessageError(
                f"{len(raw)} bytes are too many for a message of {type_name}: at most {MAX_MESSAGE_BYTES} are read",
                code="message-too-large",
            )
        try:
            return self._store.deserialize_cdr(raw, type_name)
        except _serde_error() as error:
            raise MessageError(
                f"{len(raw)} bytes are not a message of {type_name}: {error}", code="message-damaged"
            ) from error

    def hash_type(self, type_name: str) -> str | None:
        """Return the type hash (RIHS01, REP 2016), or None for Humble, which has none."""
        return None if self.distro == "humble" else self._hashing.hash_rihs01(self._known(type_name))

    def define_type(self, type_name: str) -> str:
        """Return the definitions of a type and its dependencies in the format "ros2msg" of MCAP."""
        return self._store.generate_msgdef(self._known(type_name), ros_version=2)[0]

    def _known(self, type_name: str) -> str:
        if type_name in self._store.fielddefs:
            return type_name
        near = difflib.get_close_matches(check_type(type_name), self._store.fielddefs, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"ROS 2 {self.distro} has no message type {type_name}{hint}", code="message-type-unknown")

    @cached_property
    def _hashing(self) -> Any:
        """A type store for hashing, in which `char` is uint8 as in ROS 2; rosbags hashes it as a separate type."""
        from rosbags.typesys import Stores, get_typestore

        store = get_typestore(Stores[DISTROS[self.distro]])
        for name, (constants, fields) in self._store.fielddefs.items():
            store.fielddefs[name] = (constants, [(field, _char_as_uint8(kind)) for field, kind in fields])
        return store

    def _empty(self, kind: Any) -> Any:
        what, detail = kind
        if what == BASE:
            return _python_type(detail[0])()
        if what == NAME:
            return self.make(detail)
        inner, count = detail
        count = count if what == ARRAY else 0
        if inner[0] == BASE and inner[1][0] != "string":
            return np.zeros(count, _dtype(inner[1][0]))
        return [self._empty(inner) for _ in range(count)]

    def _convert(self, kind: Any, value: Any, where: str) -> Any:
        """Return a value for a field; arrays are flat, and numbers convert to integers and booleans only exactly."""
        what, detail = kind
        if what == NAME:
            return self.make(detail, **value) if isinstance(value, dict) else value
        if what == BASE:
            expected = _python_type(detail[0])
            if type(value) is expected:
                return value
            value = value.item() if isinstance(value, np.generic) else value
            if expected is float and type(value) is int:
                return float(value)
            if type(value) is not expected:
                found = type(value).__name__
                raise MessageError(
                    f"{where} must be of type {expected.__name__}, not {found}", code="message-value-invalid"
                )
            return value
        inner, _count = detail
        if inner[0] != BASE or inner[1][0] == "string":
            return [self._convert(inner, item, where) for item in value]
        given, name = np.asarray(value), inner[1][0]
        if given.dtype.kind not in "biuf":
            raise MessageError(
                f"{where} must hold numbers of type {name}, not {given.dtype}", code="message-value-invalid"
            )
        made = np.ascontiguousarray(given, _dtype(name)).reshape(-1)
        exact = made.dtype.kind == "f" or made.dtype == given.dtype
        if not exact and not np.array_equal(made, given.reshape(-1)):
            raise MessageError(f"{where} holds {name}, which cannot represent all values", code="message-value-invalid")
        return made


def _serde_error() -> type[Exception]:
    from rosbags.serde import SerdeError

    return SerdeError


def _python_type(name: str) -> type[Any]:
    return _PYTHON_TYPES.get(name, int)


@cache
def _dtype(name: str) -> np.dtype:
    return np.dtype({"byte": "int8", "char": "uint8"}.get(name, name))


def _char_as_uint8(kind: Any) -> Any:
    what, detail = kind
    if what in (ARRAY, SEQUENCE):
        return what, (_char_as_uint8(detail[0]), detail[1])
    return (what, ("uint8", detail[1])) if what == BASE and detail[0] == "char" else kind
