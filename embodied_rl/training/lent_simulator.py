"""The simulator of a rollout worker, lent to the ranks for evaluations: there is only one robot."""

import time
from typing import Any

from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.runtime.processes.handle import Handle, RestartLimitReached
from embodied_rl.runtime.processes.local import FinishedCall


class LentSimulator:
    """A `Handle` on the only simulator of a rollout worker that collects nothing meanwhile; see `Dispatcher.pause`.

    Args:
        worker: handle of the worker. spec: of its simulator.
    """

    def __init__(self, worker: Handle, spec: SimulatorSpec) -> None:
        self.name, self.spec, self._worker = worker.name, spec, worker

    @property
    def alive(self) -> bool:
        return self._worker.alive

    def submit(self, method: str, *args: Any) -> FinishedCall:
        began = time.monotonic()
        (value,) = self._worker.submit("simulate", method, args).result()
        return FinishedCall(value, began, time.monotonic() - began)

    def restart(self) -> None:
        raise RestartLimitReached(f"{self.name} died in an evaluation. Continue the run with resume=last.")

    def memory(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: the worker's handle ends it."""
