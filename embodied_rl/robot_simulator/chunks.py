"""The policy of the bridge's controller, where chunks come from a caller: a learner, or an evaluation."""

import threading

from embodied_rl.bridge.asking import Answer, Question
from embodied_rl.deployment.messages import Chunk
from embodied_rl.interfaces.sim import Array


class OfferedChunks:
    """Answers the controller's questions with what a caller offers; a `embodied_rl.bridge.controller.Asking`.

    A chunk answers one question, whether that was asked before it was offered or after. The caller and the control
    loop may be two threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._question: Question | None = None
        self._offered: Array | None = None

    def offer(self, actions: Array) -> None:
        """Offer a chunk, float32 [H, A], chosen for what the robot observes now."""
        with self._lock:
            self._offered = actions

    def withdraw(self) -> None:
        """Take back a chunk that was not used: the robot has moved since it was chosen."""
        with self._lock:
            self._offered = None

    def ask(self, question: Question) -> None:
        with self._lock:
            self._question = question

    def take_answers(self) -> list[Answer]:
        with self._lock:
            if self._question is None or self._offered is None:
                return []
            request, self._question = self._question.request, None
            actions, self._offered = self._offered, None
        return [Answer(Chunk(request.sequence, request.epoch, request.step, actions, 0))]
