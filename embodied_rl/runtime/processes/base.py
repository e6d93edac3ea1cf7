"""Interface of runtimes, which start roles in processes on one machine or on a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.runtime.processes.interpreter import Interpreter


@dataclass(frozen=True)
class NodeShare:
    """The CPU cores and GPUs that a process reserves on its node, possibly fractions. `LocalRuntime` ignores them."""

    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Deadlines:
    """The limits of a process: seconds to start, seconds to answer a call, and restarts per hour."""

    start: float = 300.0
    call: float = 120.0
    restarts: int = 3


class BoardReader(Protocol):
    """A reader of a `Board` in another process. It can be pickled."""

    def newest(self, above: int = -1) -> tuple[int, Any] | None:
        """Return the version and the complete newest message, or None where no version is above `above`.

        Raises:
            WorkerDied: the publishing process is gone, or does not answer in time.
        """
        ...

    def close(self) -> None:
        """Release the reader."""
        ...


class Board(Protocol):
    """The newest message of one process, e.g. weights, which any number of other processes can read at any time.

    A message is any picklable value that holds most of its bytes in NumPy arrays.
    """

    def publish(self, version: int, message: Any) -> None:
        """Replace the message. Each version must be higher than the last."""
        ...

    def reader(self) -> BoardReader:
        """Return a reader, which can be sent to a worker of the same runtime."""
        ...

    def close(self) -> None:
        """Release the board. The last message may then no longer be readable."""
        ...


class Runtime(Protocol):
    """Starts processes, and ends them when the process that started them ends, even by a crash."""

    def worker(
        self,
        factory: str,
        kwargs: Mapping[str, Any],
        *,
        name: str,
        deadlines: Deadlines,
        share: NodeShare,
        interpreter: Interpreter | None = None,
        packages: tuple[str, ...] = (),
    ) -> Handle:
        """Start a role in a new process, and return its handle without waiting for the start.

        Args:
            factory: "module:Class" of the role. kwargs: its keyword arguments, picklable.
            name: for messages.
            deadlines: limits for its start, its calls and its restarts.
            share: the cores and GPUs that it reserves.
            interpreter, packages: see `embodied_rl.runtime.processes.local.ProcessHandle`.
        """
        ...

    def board(self) -> Board:
        """Return a board on which this process can publish."""
        ...
