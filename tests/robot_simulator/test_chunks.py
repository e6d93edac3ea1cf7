"""An offered chunk is executed once, or not at all: whatever order questions, steps and takeovers come in."""

from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.bridge.inference import InferenceRequest
from embodied_rl.deployment.bridge.reporting import StepContext
from embodied_rl.deployment.execution.messages import ChunkRequest
from embodied_rl.deployment.execution.tick import ExecutedStep, Mode
from embodied_rl.interfaces.sim import Source
from embodied_rl.robot_simulator.link import EndedStep, OfferedChunks

CHUNK = np.ones((2, 3), np.float32)


def ask(chunks: OfferedChunks, sequence: int) -> None:
    request = ChunkRequest(sequence, 1, 0, np.zeros((0, 3), np.float32), 0, 0.0)
    chunks.submit(InferenceRequest(request, lambda: pytest.fail("nobody asks for an observation")))


def ended(source: Source) -> EndedStep:
    step: Any = ExecutedStep(0.0, Mode.RUN, source, None, np.zeros(3, np.float32), np.zeros(3))
    return step, StepContext(0, 0, 0, "", {})


def answers(chunks: OfferedChunks) -> list[int]:
    found = [answer.chunk for answer in chunks.take_results()]
    assert all(chunk is not None and (chunk.actions == 1).all() for chunk in found)
    return [chunk.sequence for chunk in found if chunk is not None]


@pytest.mark.parametrize("offer_first", [True, False])
def test_a_question_and_an_offer_meet_in_either_order(offer_first: bool) -> None:
    chunks = OfferedChunks()
    for act in (chunks.offer, ask) if offer_first else (ask, chunks.offer):
        assert answers(chunks) == []
        act(CHUNK) if act is not ask else ask(chunks, 7)
    assert answers(chunks) == [7] and answers(chunks) == []


def test_a_chunk_that_was_forgotten_before_it_began_is_given_again() -> None:
    chunks = OfferedChunks()
    chunks.offer(CHUNK)
    ask(chunks, 1)
    assert answers(chunks) == [1]
    assert chunks.take(lambda: [ended(Source.HOLD)])
    ask(chunks, 2)
    assert answers(chunks) == [2]


@pytest.mark.parametrize("source", [Source.POLICY, Source.HUMAN, Source.SAFETY, Source.REPLAY])
@pytest.mark.parametrize("taken", [True, False])
def test_a_chunk_is_over_once_the_robot_has_done_something(source: Source, taken: bool) -> None:
    """Whether the caller has taken the step already, or the control loop alone knows of it."""
    chunks = OfferedChunks()
    chunks.offer(CHUNK)
    ask(chunks, 1)
    assert answers(chunks) == [1]
    if taken:
        chunks.take(lambda: [ended(source)])
    else:
        chunks.list_ended = lambda: [ended(source)]
    ask(chunks, 2)
    assert answers(chunks) == []


def test_a_withdrawn_chunk_answers_nothing() -> None:
    chunks = OfferedChunks()
    chunks.offer(CHUNK)
    chunks.offer(None)
    ask(chunks, 1)
    assert answers(chunks) == []
