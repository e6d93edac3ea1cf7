"""The runtime of one machine: processes that talk through pipes and shared memory."""

from collections.abc import Mapping
from typing import Any

from embodied_rl.processes.base import Deadlines, NodeShare
from embodied_rl.processes.board import SharedBoard
from embodied_rl.processes.interpreter import Interpreter
from embodied_rl.processes.local import ProcessHandle


class ThisMachine:
    """A `Runtime` without anything that runs besides. Cores are not counted: processes share them."""

    def __init__(self) -> None:
        self._boards: list[SharedBoard] = []

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
    ) -> ProcessHandle:
        """See `Runtime.worker`. It can read the boards that there are by now."""
        return ProcessHandle(
            factory,
            kwargs,
            name=name,
            start_timeout=deadlines.start,
            call_timeout=deadlines.call,
            max_restarts=deadlines.restarts,
            interpreter=interpreter,
            packages=packages,
            descriptors=[board.descriptor for board in self._boards],
        )

    def board(self) -> SharedBoard:
        """See `Runtime.board`."""
        self._boards.append(SharedBoard())
        return self._boards[-1]
