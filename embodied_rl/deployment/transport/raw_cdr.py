"""CDR bytes through Cyclone DDS for Python, without its own slow encoding: the one file that knows its private parts.

`cyclonedds._clayer` takes and gives bytes; its functions may change with any version, so that one version is used and
no other. An image of 640×480 takes 0.5 ms here, and 170 ms through the package's own classes (docs/ros2.md).
"""

from typing import Any

from embodied_rl.deployment.transport.extras import REMEDY, require
from embodied_rl.interfaces.sim import Unavailable

VERSION = "11.0.1"

if (_found := require("cyclonedds", "DDS")) != VERSION:
    raise Unavailable(f"cyclonedds {_found} is installed, and its private parts are known in {VERSION} alone: {REMEDY}")

from cyclonedds._clayer import ddspy_take, ddspy_write  # noqa: E402
from cyclonedds.core import DDSException, Entity, InstanceState, SampleState, ViewState  # noqa: E402
from cyclonedds.pub import DataWriter  # noqa: E402
from cyclonedds.sub import DataReader  # noqa: E402

_ANY = SampleState.Any | ViewState.Any | InstanceState.Any


def write(writer: DataWriter, raw: bytes) -> None:
    """Publish CDR bytes with their header; they are padded to a multiple of 4, as XCDR1 has them.

    Raises:
        DDSException: they were not taken; its `code` is DDS_RETCODE_TIMEOUT where a reliable reader is too slow.
    """
    result = ddspy_write(writer._ref, raw + bytes(-len(raw) % 4))
    if result < 0:
        raise DDSException(result, "writing CDR bytes")


def take(reader: DataReader, limit: int) -> list[tuple[bytes, int, int]]:
    """Return up to `limit` messages that arrived, the oldest first: (CDR bytes, when they were published in ns, the
    handle of the writer that did).

    Raises:
        DDSException: the reader does not answer.
    """
    found: Any = ddspy_take(reader._ref, _ANY, limit)
    if isinstance(found, int):
        raise DDSException(found, "taking CDR bytes")
    return [(raw, info.source_timestamp, info.publication_handle) for raw, info in found if info.valid_data]


def delete(entity: Entity) -> None:
    """Delete an entity of DDS, and all that belongs to it, now and not when Python collects it."""
    known: Any = Entity  # its class attributes are made by decorators that type checkers do not follow
    known._entities.pop(entity._ref, None)
    known._delete(entity, entity._ref)
