"""The runtime of one machine: processes that communicate through pipes and shared memory."""

from collections.abc import Mapping
from typing import Any

from embodied_rl.runtime.processes.base import Deadlines, NodeShare
from embodied_rl.runtime.processes.board import SharedBoard
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.runtime.processes.local import ProcessHandle


class ThisMachine:
    """A `Runtime` that needs no other service. It does not count cores: processes share them."""

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
        """Start a worker; see `Runtime.worker`. It can read the boards that exist already."""
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
        """Return a new board; see `Runtime.board`."""
        self._boards.append(SharedBoard())
        return self._boards[-1]
