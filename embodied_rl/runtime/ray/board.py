"""A `Board` in a cluster: Ray's object store holds the message, once per node, and an actor holds the reference."""

import os
import secrets
from collections.abc import Mapping
from typing import Any

from embodied_rl.runtime.processes.arrays import Packed, pack, unpack
from embodied_rl.runtime.processes.handle import NoAnswer, NodeShare, WorkerDied
from embodied_rl.runtime.ray import cluster
from embodied_rl.runtime.ray.cluster import ActorDied, CallTimeout, RayActor

DEADLINE = 60.0


class BoardActor:
    """An actor that holds the newest version and its reference, in a list so that Ray does not send the value."""

    def __init__(self) -> None:
        self._version, self._reference = -1, list[Any]()

    def put(self, version: int, reference: list[Any]) -> None:
        """Replace the version and the reference."""
        self._version, self._reference = version, reference

    def newest(self, above: int) -> tuple[int, list[Any]] | None:
        """Return the version and the reference, or None if the version is not above `above`."""
        return (self._version, self._reference) if self._version > above else None


class RayBoard:
    """A `Board` (see `embodied_rl.runtime.processes.handle`) in a cluster. It ends with the process that made it.

    Args:
        variables: environment variables of its actor.
        deadline: seconds in which its actor must answer.
    """

    def __init__(self, variables: Mapping[str, str], deadline: float = DEADLINE):
        self._name, self._deadline = f"board {os.getpid()} {secrets.token_hex(8)}", deadline
        self._actor = RayActor(BoardActor, share=NodeShare(0.0), name=self._name, variables=variables, stays=True)
        self._put: Any = None

    def publish(self, version: int, message: Any) -> None:
        """Put a message in the object store once, with its tensors as bytes, and publish its version."""
        reference = cluster.put_value(pack(message))
        _call(self._actor, self._deadline, "put", version, [reference])
        self._put = reference

    def reader(self) -> "RayBoardReader":
        """Return a reader. It holds only the actor's name, so any pickler can pickle it."""
        return RayBoardReader(self._name, self._deadline)

    def close(self) -> None:
        """End the actor and release the message."""
        self._actor.kill()
        self._put = None


class RayBoardReader:
    """A `BoardReader` (see `embodied_rl.runtime.processes.handle`) for any process of the same job.

    Args:
        name: of the actor. deadline: seconds in which the actor must answer, and in which a message must arrive.
    """

    def __init__(self, name: str, deadline: float):
        self._name, self._deadline = name, deadline
        self._actor: RayActor | None = None

    def newest(self, above: int = -1) -> tuple[int, Any] | None:
        """Return the version and the newest message, with arrays copied, or None; see `BoardReader.newest`."""
        try:
            self._actor = self._actor or RayActor.find(self._name)
            found = _call(self._actor, self._deadline, "newest", above)
            if found is None:
                return None
            version, [reference] = found
            packed: Packed = cluster.get_value(reference, self._deadline)
        except ActorDied as lost:
            raise WorkerDied(f"The process that published weights {lost}.") from None
        except CallTimeout:
            raise NoAnswer(f"The published message did not arrive within {self._deadline:g} s.") from None
        return version, unpack(packed)

    def close(self) -> None:
        """Release the reader."""
        self._actor = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_deadline": self._deadline, "_actor": None}


def _call(actor: RayActor, deadline: float, method: str, *args: Any) -> Any:
    try:
        return actor.call(method, *args).take(deadline)
    except ActorDied as lost:
        raise WorkerDied(f"The board: the process that published {lost}.") from None
    except CallTimeout:
        raise NoAnswer(f"The board gave no answer within {deadline:g} s during '{method}'.") from None
