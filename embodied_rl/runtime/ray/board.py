"""A `Board` in a cluster: Ray's object store holds the message, once per node, and an actor holds the reference."""

import os
import secrets
from collections.abc import Mapping
from typing import Any

from embodied_rl.runtime.processes.arrays import Packed, pack, unpack
from embodied_rl.runtime.processes.base import NodeShare
from embodied_rl.runtime.processes.handle import NoAnswer, WorkerDied
from embodied_rl.runtime.ray import cluster
from embodied_rl.runtime.ray.cluster import ActorLost, RayActor, TooLate

DEADLINE = 60.0


class WeightsKeeper:
    """An actor that keeps the newest version and its reference, in a list so that Ray does not send the value."""

    def __init__(self) -> None:
        self._version, self._where = -1, list[Any]()

    def put(self, version: int, where: list[Any]) -> None:
        """Replace the version and the reference."""
        self._version, self._where = version, where

    def newest(self, above: int) -> tuple[int, list[Any]] | None:
        """Return the version and the reference, or None if the version is not above `above`."""
        return (self._version, self._where) if self._version > above else None


class RayBoard:
    """A `Board` (see `embodied_rl.runtime.processes.base`) in a cluster. It ends with the process that made it.

    Args:
        variables: environment variables of its actor.
        deadline: seconds in which its actor must answer.
    """

    def __init__(self, variables: Mapping[str, str], deadline: float = DEADLINE):
        self._name, self._deadline = f"board {os.getpid()} {secrets.token_hex(8)}", deadline
        self._keeper = RayActor(WeightsKeeper, share=NodeShare(0.0), name=self._name, variables=variables, stays=True)
        self._put: Any = None

    def publish(self, version: int, message: Any) -> None:
        """Put a message in the object store once, with its tensors as bytes, and announce its version."""
        where = cluster.put_value(pack(message))
        _answer(self._keeper, self._deadline, "put", version, [where])
        self._put = where

    def reader(self) -> "RayBoardReader":
        """Return a reader. It holds only the actor's name, so any pickler can pickle it."""
        return RayBoardReader(self._name, self._deadline)

    def close(self) -> None:
        """End the actor and release the message."""
        self._keeper.kill()
        self._put = None


class RayBoardReader:
    """A `BoardReader` (see `embodied_rl.runtime.processes.base`) for any process of the same job.

    Args:
        name: of the actor. deadline: seconds in which the actor must answer, and in which a message must arrive.
    """

    def __init__(self, name: str, deadline: float):
        self._name, self._deadline = name, deadline
        self._keeper: RayActor | None = None

    def newest(self, above: int = -1) -> tuple[int, Any] | None:
        """Return the version and the newest message, with arrays copied, or None; see `BoardReader.newest`."""
        try:
            self._keeper = self._keeper or RayActor.find(self._name)
            found = _answer(self._keeper, self._deadline, "newest", above)
            if found is None:
                return None
            version, [where] = found
            packed: Packed = cluster.get_value(where, self._deadline)
        except ActorLost as lost:
            raise WorkerDied(f"Whoever published weights {lost}.") from None
        except TooLate:
            raise NoAnswer(f"What was published did not arrive within {self._deadline:g} s.") from None
        return version, unpack(packed)

    def close(self) -> None:
        """Release the reader."""
        self._keeper = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_deadline": self._deadline, "_keeper": None}


def _answer(keeper: RayActor, deadline: float, method: str, *args: Any) -> Any:
    try:
        return keeper.call(method, *args).take(deadline)
    except ActorLost as lost:
        raise WorkerDied(f"The board: whoever published {lost}.") from None
    except TooLate:
        raise NoAnswer(f"The board gave no answer within {deadline:g} s during '{method}'.") from None
