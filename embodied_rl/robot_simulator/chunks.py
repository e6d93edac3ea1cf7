"""The policy of the bridge's controller, with chunks from a caller: a learner, or an evaluation."""

import threading
from collections.abc import Callable, Sequence

from embodied_rl.deployment.bridge.inference import InferenceRequest, InferenceResult
from embodied_rl.deployment.bridge.reporting import StepContext
from embodied_rl.deployment.execution.messages import Chunk
from embodied_rl.deployment.execution.tick import ExecutedStep
from embodied_rl.interfaces.sim import Array, Source

EndedStep = tuple[ExecutedStep, StepContext]


class OfferedChunks:
    """Answers the controller's questions with what is offered; an `InferenceBackend` of the bridge.

    A chunk answers questions until the robot has done something: one that was forgotten before it began, such as by a
    watchdog, is given again; one that began, or that a human overtook, never. The caller and the control loop may be
    two threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._request: InferenceRequest | None = None
        self._offered: Array | None = None
        self.list_ended: Callable[[], Sequence[EndedStep]] = tuple
        """Returns the control steps that have ended, and that `take` was not asked for."""

    def offer(self, actions: Array | None) -> None:
        """Offer a chunk, float32 [H, A], chosen for what the robot observes now; None: none any more."""
        with self._lock:
            self._offered = actions

    def take(self, take_ended: Callable[[], list[EndedStep]]) -> list[EndedStep]:
        """Take the control steps that have ended; with one in which the robot did something the offer is over."""
        with self._lock:
            found = take_ended()
            self._end_offer(found)
        return found

    def submit(self, request: InferenceRequest) -> None:
        with self._lock:
            self._request = request

    def take_results(self) -> list[InferenceResult]:
        with self._lock:
            self._end_offer(self.list_ended())
            if self._request is None or self._offered is None:
                return []
            request, self._request = self._request.request, None
            return [InferenceResult(Chunk(request.sequence, request.epoch, request.step, self._offered, 0))]

    def _end_offer(self, ended: Sequence[EndedStep]) -> None:
        if any(step.source != Source.HOLD for step, _ in ended):
            self._offered = None
