"""Requests of action chunks from the policy: synchronous in lockstep, else in a separate thread.

A failed request is a result with a text and never raises in the control loop: the robot holds when its plan ends.
"""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.bridge.pacing import DurationHistogram
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest
from embodied_rl.deployment.execution.settings import CONTINUING, Strategy
from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.client_messages import NoPolicyAnswer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation

CLOSING_S = 5.0


@dataclass(frozen=True)
class SentNoiseKeys:
    """Keys of a policy's noise, one row; see `interfaces.policy.NoiseKeys`."""

    seed: int
    episode: NDArray[np.int64]
    decision: NDArray[np.int64]


@dataclass(frozen=True)
class InferenceRequest:
    """A chunk request of the executor with its observation.

    Attributes:
        observe: builds the observation, one row, from stored messages; may be slow; raises `UserError` if a message is
            unusable.
        episode: with `decision`, key of the policy's noise; None: chunks start from the mean of the noise.
    """

    request: ChunkRequest
    observe: Callable[[], Observation]
    episode: int | None = None
    decision: int = 0


@dataclass(frozen=True)
class InferenceResult:
    """A chunk, or the reason for its absence."""

    chunk: Chunk | None
    failure: str = ""


class InferenceBackend(Protocol):
    """Accepts requests, and returns the results since the last call, without blocking the control loop."""

    def submit(self, request: InferenceRequest) -> None: ...
    def take_results(self) -> list[InferenceResult]: ...


class ChunkClient:
    """Requests chunks from a policy and measures the latency.

    Args:
        seed: of the policy's noise, for requests of an episode.
    """

    def __init__(self, policy: PolicyClient, strategy: Strategy, seed: int | None) -> None:
        self.policy, self.strategy, self._seed = policy, strategy, seed
        self.asked = self.answered = self.failed = 0
        self.seconds = DurationHistogram()

    def infer(self, request: InferenceRequest) -> InferenceResult:
        """Send a request and wait for the answer, at most for the policy's timeout."""
        began, chunk_request = time.monotonic(), request.request
        self.asked += 1
        keys, prefix, committed = None, None, None
        if self._seed is not None and request.episode is not None:
            rows = (np.array([number], np.int64) for number in (request.episode, request.decision))
            keys = SentNoiseKeys(self._seed, *rows)
        continues = self.strategy in CONTINUING
        if continues and len(chunk_request.prefix):
            prefix, committed = chunk_request.prefix[None], np.array([chunk_request.committed], np.int64)
        try:
            actions = self.policy.infer(
                request.observe(), keys, prefix, committed,
                whole=True, strategy=self.strategy if continues else "prefix",
            )  # fmt: skip
        except (NoPolicyAnswer, UserError) as error:
            self.failed += 1
            return InferenceResult(None, str(error))
        self.answered += 1
        self.seconds.add(time.monotonic() - began)
        version = -1 if self.policy.version is None else self.policy.version
        return InferenceResult(
            Chunk(chunk_request.sequence, chunk_request.epoch, chunk_request.step, actions[0], version)
        )


class SyncInference:
    """Runs each request at once, for lockstep, in which the robot's time stands still during inference."""

    def __init__(self, client: ChunkClient) -> None:
        self._client = client
        self._results: list[InferenceResult] = []

    def submit(self, request: InferenceRequest) -> None:
        self._results.append(self._client.infer(request))

    def take_results(self) -> list[InferenceResult]:
        found, self._results = self._results, []
        return found


class AsyncInference:
    """Thread that runs one request at a time; a newer request replaces a waiting one.

    Attributes:
        failure: an unexpected exception; the bridge raises it after the robot has come to rest.
    """

    def __init__(self, client: ChunkClient) -> None:
        self._client = client
        self._requests = queue.Queue[InferenceRequest | None](maxsize=1)
        self._results = queue.SimpleQueue[InferenceResult]()
        self._thread = threading.Thread(target=self._work, name="inference", daemon=True)
        self.failure: BaseException | None = None
        self._thread.start()

    def submit(self, request: InferenceRequest) -> None:
        """Queue a request without waiting. Only the control thread may call this."""
        with suppress(queue.Empty):
            self._requests.get_nowait()  # the executor has discarded it: only its newest request counts
        self._requests.put_nowait(request)

    def take_results(self) -> list[InferenceResult]:
        found = list[InferenceResult]()
        while True:
            try:
                found.append(self._results.get_nowait())
            except queue.Empty:
                return found

    def close(self) -> None:
        """End the thread. A request that does not return in `CLOSING_S` ends with the process."""
        while self._thread.is_alive():
            try:
                self._requests.put(None, timeout=CLOSING_S)
                break
            except queue.Full:
                self._requests.get_nowait()
        self._thread.join(CLOSING_S)

    def _work(self) -> None:
        try:
            while (request := self._requests.get()) is not None:
                self._results.put(self._client.infer(request))
        except BaseException as error:  # noqa: BLE001  the bridge raises it, once the robot is at rest
            self.failure = error
            self._results.put(InferenceResult(None, f"inference failed: {type(error).__name__}: {error}"))
