"""Where roles run. Whoever needs a process asks a `Runtime`, and gets a handle; the rest does not know which it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from embodied_rl.processes.handle import Handle
from embodied_rl.processes.interpreter import Interpreter


@dataclass(frozen=True)
class NodeShare:
    """What a process has of its node: cores and GPUs, fractions included. A single machine does not keep count."""

    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Deadlines:
    """Seconds in which a process must have started, and in which a call must be answered; and restarts an hour."""

    start: float = 300.0
    call: float = 120.0
    restarts: int = 3


class BoardReader(Protocol):
    """Reads a `Board` from another process; can be pickled."""

    def newest(self, above: int = -1) -> tuple[int, Any] | None:
        """Version and message, where there is one of a version above this; never half of one.

        Raises:
            WorkerDied: whoever publishes is gone, or does not answer in time.
        """
        ...

    def close(self) -> None:
        """Release it."""
        ...


class Board(Protocol):
    """The newest message of one process, for any number of others to read whenever they like: weights, say.

    A message is anything that pickles, with its bulk in NumPy arrays.
    """

    def publish(self, version: int, message: Any) -> None:
        """Replace the message. Versions rise."""
        ...

    def reader(self) -> BoardReader:
        """To be sent to a worker of the same runtime."""
        ...

    def close(self) -> None:
        """Release it. Nobody may count on reading the last message then."""
        ...


class Runtime(Protocol):
    """Starts processes, and ends them with whoever started them, however that ends."""

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
        """A role in a process of its own, which starts at once.

        Args:
            factory: "module:Class" of the role. kwargs: its keyword arguments, picklable.
            name: for messages.
            deadlines: of its life and its calls.
            share: of its node.
            interpreter, packages: see `embodied_rl.processes.local.ProcessHandle`.
        """
        ...

    def board(self) -> Board:
        """A place to publish from this process."""
        ...
