"""Who asks the policy: what it is shown, what becomes of failures, and that the control loop never waits for it."""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.asking import AskerThread, ChunkAsker, Question
from embodied_rl.deployment.execution.messages import ChunkRequest
from embodied_rl.deployment.policy_server.exchange import NoPolicyAnswer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation
from tests.support.ended import wait_for


@dataclass
class NotingPolicy:
    """Notes what it is asked; raises what it is told to; waits for its gate."""

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


def question(sequence: int = 1, prefix: Any = None, episode: int | None = None) -> Question:
    given = np.zeros((0, 2), np.float32) if prefix is None else prefix
    seen = Observation({}, np.zeros((1, 3), np.float32), ("go",))
    return Question(ChunkRequest(sequence, 2, 5, given, len(given), 0.0), lambda: seen, episode, 3)


def test_an_answer_is_of_its_request() -> None:
    answer = ChunkAsker(NotingPolicy(), "naive", None, lambda: 0.0).ask(question(sequence=9))
    assert answer.chunk is not None
    assert (answer.chunk.sequence, answer.chunk.epoch, answer.chunk.step, answer.chunk.policy_version) == (9, 2, 5, 7)
    assert answer.chunk.actions.shape == (4, 2)


def test_a_policy_that_continues_is_shown_what_is_committed_and_others_are_not() -> None:
    prefix = np.ones((2, 2), np.float32)
    continuing, naive = NotingPolicy(), NotingPolicy()
    ChunkAsker(continuing, "prefix", None, lambda: 0.0).ask(question(prefix=prefix))
    ChunkAsker(naive, "naive", None, lambda: 0.0).ask(question(prefix=prefix))
    np.testing.assert_array_equal(continuing.asked[0]["prefix"], prefix[None])
    np.testing.assert_array_equal(continuing.asked[0]["committed"], [2])
    assert naive.asked[0]["prefix"] is None


def test_episodes_have_keys_of_noise() -> None:
    policy = NotingPolicy()
    asker = ChunkAsker(policy, "stop", 11, lambda: 0.0)
    asker.ask(question(episode=4))
    asker.ask(question())
    keys = policy.asked[0]["keys"]
    assert (keys.seed, keys.episode.tolist(), keys.decision.tolist()) == (11, [4], [3])
    assert policy.asked[1]["keys"] is None


@pytest.mark.parametrize("error", [NoPolicyAnswer("it is away"), UserError("no such word")])
def test_what_goes_wrong_is_said_in_words(error: Exception) -> None:
    asker = ChunkAsker(NotingPolicy(raises=error), "naive", None, lambda: 0.0)
    answer = asker.ask(question())
    assert answer.chunk is None
    assert str(error) in answer.failure
    assert (asker.failed, asker.answered) == (1, 0)


def test_the_control_loop_does_not_wait_and_the_newest_question_counts() -> None:
    policy = NotingPolicy(gate=threading.Event())
    thread = AskerThread(ChunkAsker(policy, "naive", None, lambda: 0.0))
    thread.ask(question(1))
    wait_for(lambda: len(policy.asked) == 1)
    thread.ask(question(2))
    thread.ask(question(3))  # 2 waits still, and is replaced
    assert thread.take_answers() == []
    assert policy.gate is not None
    policy.gate.set()
    answers: list[Any] = []
    wait_for(lambda: len(answers.extend(thread.take_answers()) or answers) == 2)
    assert [each.chunk.sequence for each in answers] == [1, 3]
    thread.close()


def test_a_fault_of_the_program_is_kept_and_told() -> None:
    thread = AskerThread(ChunkAsker(NotingPolicy(raises=ZeroDivisionError("odd")), "naive", None, lambda: 0.0))
    thread.ask(question())
    answers: list[Any] = []
    wait_for(lambda: bool(answers.extend(thread.take_answers()) or answers))
    assert "odd" in answers[0].failure
    assert isinstance(thread.failure, ZeroDivisionError)
    thread.close()
