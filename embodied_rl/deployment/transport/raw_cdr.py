"""Send and receive CDR bytes through private functions of the Python package of Cyclone DDS.

Its public classes need 170 ms for an image of 640×480, these functions 0.5 ms (docs/ros2.md). They may change with any
version, so exactly one version is accepted.
"""

from typing import Any

from embodied_rl.deployment.transport.extras import REMEDY, require
from embodied_rl.interfaces.sim import Unavailable

VERSION = "11.0.1"

if (_found := require("cyclonedds", "DDS")) != VERSION:
    raise Unavailable(f"cyclonedds {_found} is installed, but only {VERSION} is supported: {REMEDY}")

from cyclonedds._clayer import ddspy_take, ddspy_write  # noqa: E402
from cyclonedds.core import DDSException, Entity, InstanceState, SampleState, ViewState  # noqa: E402
from cyclonedds.pub import DataWriter  # noqa: E402
from cyclonedds.sub import DataReader  # noqa: E402

_ANY = SampleState.Any | ViewState.Any | InstanceState.Any


def write(writer: DataWriter, raw: bytes) -> None:
    """Publish CDR bytes with their header, padded to a multiple of 4 as in XCDR1.

    Raises:
        DDSException: sending failed; `code` is DDS_RETCODE_TIMEOUT if a reliable reader is too slow.
    """
    result = ddspy_write(writer._ref, raw + bytes(-len(raw) % 4))
    if result < 0:
        raise DDSException(result, "writing CDR bytes")


def take(reader: DataReader, limit: int) -> list[tuple[bytes, int, int]]:
    """Take up to `limit` waiting messages, oldest first: (CDR bytes, time published in ns, handle of the writer)."""
    found: Any = ddspy_take(reader._ref, _ANY, limit)
    if isinstance(found, int):
        raise DDSException(found, "taking CDR bytes")
    return [(raw, info.source_timestamp, info.publication_handle) for raw, info in found if info.valid_data]


def delete(entity: Entity) -> None:
    """Delete a DDS entity and its children immediately, instead of by garbage collection."""
    known: Any = Entity  # decorators create its class attributes, which type checkers do not see
    known._entities.pop(entity._ref, None)
    known._delete(entity, entity._ref)
