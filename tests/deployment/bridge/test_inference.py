"""Inference requests: their arguments, their failures, and that the control loop never waits for them."""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.inference import AsyncInference, ChunkClient, InferenceRequest
from embodied_rl.deployment.execution.messages import ChunkRequest
from embodied_rl.deployment.policy_client.client_messages import NoPolicyAnswer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation
from tests.support.ended import wait_for


@dataclass
class RecordingPolicy:
    """Records its arguments; raises `raises`; waits for its gate."""

    raises: Exception | None = None
    gate: threading.Event | None = None
    version: int | None = 7
    spec: Any = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    def infer(self, observation: Any, keys: Any = None, prefix: Any = None, committed: Any = None, **more: Any) -> Any:
        self.asked.append({"observation": observation, "keys": keys, "prefix": prefix, "committed": committed, **more})
        if self.gate is not None:
            assert self.gate.wait(60)
        if self.raises is not None:
            raise self.raises
        return np.full((1, 4, 2), len(self.asked), np.float32)


def make_request(sequence: int = 1, prefix: Any = None, episode: int | None = None) -> InferenceRequest:
    given = np.zeros((0, 2), np.float32) if prefix is None else prefix
    seen = Observation({}, np.zeros((1, 3), np.float32), ("go",))
    return InferenceRequest(ChunkRequest(sequence, 2, 5, given, len(given), 0.0), lambda: seen, episode, 3)


def test_a_result_belongs_to_its_request() -> None:
    answer = ChunkClient(RecordingPolicy(), "naive", None).infer(make_request(sequence=9))
    assert answer.chunk is not None
    assert (answer.chunk.sequence, answer.chunk.epoch, answer.chunk.step, answer.chunk.policy_version) == (9, 2, 5, 7)
    assert answer.chunk.actions.shape == (4, 2)


def test_only_a_continuing_policy_gets_the_committed_prefix() -> None:
    prefix = np.ones((2, 2), np.float32)
    continuing, naive = RecordingPolicy(), RecordingPolicy()
    ChunkClient(continuing, "prefix", None).infer(make_request(prefix=prefix))
    ChunkClient(naive, "naive", None).infer(make_request(prefix=prefix))
    np.testing.assert_array_equal(continuing.asked[0]["prefix"], prefix[None])
    np.testing.assert_array_equal(continuing.asked[0]["committed"], [2])
    assert naive.asked[0]["prefix"] is None


def test_requests_of_episodes_have_noise_keys() -> None:
    policy = RecordingPolicy()
    client = ChunkClient(policy, "stop", 11)
    client.infer(make_request(episode=4))
    client.infer(make_request())
    keys = policy.asked[0]["keys"]
    assert (keys.seed, keys.episode.tolist(), keys.decision.tolist()) == (11, [4], [3])
    assert policy.asked[1]["keys"] is None


@pytest.mark.parametrize("error", [NoPolicyAnswer("it is away"), UserError("no such word")])
def test_a_failure_is_a_result(error: Exception) -> None:
    client = ChunkClient(RecordingPolicy(raises=error), "naive", None)
    answer = client.infer(make_request())
    assert answer.chunk is None
    assert str(error) in answer.failure
    assert (client.failed, client.answered) == (1, 0)


def test_a_newer_request_replaces_a_waiting_one_without_blocking() -> None:
    policy = RecordingPolicy(gate=threading.Event())
    thread = AsyncInference(ChunkClient(policy, "naive", None))
    thread.submit(make_request(1))
    wait_for(lambda: len(policy.asked) == 1)
    thread.submit(make_request(2))
    thread.submit(make_request(3))  # replaces 2, which waits
    assert thread.take_results() == []
    assert policy.gate is not None
    policy.gate.set()
    answers: list[Any] = []
    wait_for(lambda: len(answers.extend(thread.take_results()) or answers) == 2)
    assert [each.chunk.sequence for each in answers] == [1, 3]
    thread.close()


def test_an_unexpected_exception_is_kept_and_reported() -> None:
    thread = AsyncInference(ChunkClient(RecordingPolicy(raises=ZeroDivisionError("odd")), "naive", None))
    thread.submit(make_request())
    answers: list[Any] = []
    wait_for(lambda: bool(answers.extend(thread.take_results()) or answers))
    assert "odd" in answers[0].failure
    assert isinstance(thread.failure, ZeroDivisionError)
    thread.close()
