"""Who asks the policy for chunks: at once in lockstep, or in a thread of its own beside the control loop.

What goes wrong is said in words and never raised in the control loop: the robot holds still when its plan ends.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.bridge.pacing import DurationHistogram
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest
from embodied_rl.deployment.execution.settings import CONTINUING, Strategy
from embodied_rl.deployment.policy_server.exchange import NoPolicyAnswer
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation

CLOSING_S = 5.0


class AskedPolicy(Protocol):
    """A policy that the bridge asks; `PolicyClient` is one.

    Attributes:
        spec: what it expects; None where it does not say.
        version: of the weights that gave the last answer.
    """

    @property
    def spec(self) -> PolicyDescription | None: ...
    @property
    def version(self) -> int | None: ...
    def infer(
        self,
        observation: Observation,
        keys: Any = None,
        prefix: NDArray[np.float32] | None = None,
        committed: NDArray[np.int64] | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> NDArray[np.float32]:
        """Return a chunk for each row, float32 [n, H, A]."""
        ...


@dataclass(frozen=True)
class SentNoiseKeys:
    """Keys of a policy's noise, one row; see `interfaces.policy.NoiseKeys`."""

    seed: int
    episode: NDArray[np.int64]
    decision: NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """A request of the executor, and the observation that it was made with.

    Attributes:
        observe: makes the observation, of one row, from messages that were kept; it may take long, and raises
            `UserError` where they cannot be used.
        episode: key of the policy's noise, with the number of the decision; None: chunks start from the noise's mean.
    """

    request: ChunkRequest
    observe: Callable[[], Observation]
    episode: int | None = None
    decision: int = 0


@dataclass(frozen=True)
class Answer:
    """What came of a question: a chunk, or why there is none."""

    chunk: Chunk | None
    failure: str = ""
    seconds: float = 0.0


class ChunkAsker:
    """Asks a policy.

    Args:
        policy: who is asked; its own deadline holds for each question.
        strategy: of the executor.
        seed: of the policy's noise, for questions of an episode.
        clock: seconds, monotonic.
    """

    def __init__(self, policy: AskedPolicy, strategy: Strategy, seed: int | None, clock: Callable[[], float]) -> None:
        self.policy, self.strategy, self._seed, self._clock = policy, strategy, seed, clock
        self.asked = self.answered = self.failed = 0
        self.seconds = DurationHistogram()
        """From a question to its answer."""

    def ask(self, question: Question) -> Answer:
        """Ask, and wait for the answer as long as the policy does."""
        began, request = self._clock(), question.request
        self.asked += 1
        try:
            actions = self.policy.infer(
                question.observe(), self._choose_keys(question), *self._show_prefix(request),
                whole=True, strategy=self.strategy if self.strategy in CONTINUING else "prefix",
            )  # fmt: skip
        except (NoPolicyAnswer, UserError) as error:
            self.failed += 1
            return Answer(None, str(error), self._clock() - began)
        self.answered += 1
        self.seconds.add(self._clock() - began)
        version = -1 if self.policy.version is None else self.policy.version
        chunk = Chunk(request.sequence, request.epoch, request.step, actions[0], version)
        return Answer(chunk, "", self._clock() - began)

    def _choose_keys(self, question: Question) -> SentNoiseKeys | None:
        if self._seed is None or question.episode is None:
            return None
        rows = (np.array([number], np.int64) for number in (question.episode, question.decision))
        return SentNoiseKeys(self._seed, *rows)

    def _show_prefix(self, request: ChunkRequest) -> tuple[Any, Any]:
        if self.strategy not in CONTINUING or not len(request.prefix):
            return None, None
        return request.prefix[None], np.array([request.committed], np.int64)


class DirectAsking:
    """Answers a question before the control loop goes on, for lockstep: time stands still meanwhile.

    Args:
        asker: who asks.
    """

    def __init__(self, asker: ChunkAsker) -> None:
        self._asker = asker
        self._answers: list[Answer] = []

    def ask(self, question: Question) -> None:
        """Ask, and keep the answer."""
        self._answers.append(self._asker.ask(question))

    def take_answers(self) -> list[Answer]:
        """Return the answers since the last call."""
        found, self._answers = self._answers, []
        return found


class AskerThread:
    """A thread that asks one question at a time; a newer one replaces one that waits.

    Args:
        asker: who asks.
    """

    def __init__(self, asker: ChunkAsker) -> None:
        self._asker = asker
        self._questions = queue.Queue[Question | None](maxsize=1)
        self._answers = queue.SimpleQueue[Answer]()
        self._thread = threading.Thread(target=self._work, name="asks the policy", daemon=True)
        self.failure: BaseException | None = None
        """A fault of the program, which the control loop raises after the robot has come to rest."""
        self._thread.start()

    def ask(self, question: Question) -> None:
        """Hand over a question without waiting. For the control thread alone."""
        with suppress(queue.Empty):
            self._questions.get_nowait()  # it was lost anyway: the executor has one question at a time
        self._questions.put_nowait(question)

    def take_answers(self) -> list[Answer]:
        """Return what was answered since the last call, without waiting."""
        found = list[Answer]()
        while True:
            try:
                found.append(self._answers.get_nowait())
            except queue.Empty:
                return found

    def close(self) -> None:
        """End the thread; it ends with the process where a question is under way."""
        while self._thread.is_alive():
            try:
                self._questions.put(None, timeout=CLOSING_S)
                break
            except queue.Full:
                self._questions.get_nowait()
        self._thread.join(CLOSING_S)

    def _work(self) -> None:
        try:
            while (question := self._questions.get()) is not None:
                self._answers.put(self._asker.ask(question))
        except BaseException as error:  # noqa: BLE001  raised by the bridge, once the robot is at rest
            self.failure = error
            self._answers.put(Answer(None, f"asking the policy failed: {type(error).__name__}: {error}"))
