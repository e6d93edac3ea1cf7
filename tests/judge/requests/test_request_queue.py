"""The queue of a scorer: what waits keeps its order and place, and each question is told from others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.scorer import Score, ScoreKind
from embodied_rl.judge.requests import request_queue
from embodied_rl.judge.requests.request_queue import RequestQueue, Ticket
from embodied_rl.judge.scorers import shared_images
from embodied_rl.judge.scorers.shared_images import Picture, SharedImages
from tests.support.scoring import ToldScorer, request


def test_abandoned_requests_take_no_place_and_leave_the_order_as_it_is() -> None:
    queue = RequestQueue(ToldScorer().traits, most=6, apart=False)
    tickets = [Ticket(request(priority), priority, 0.0) for priority in (1, 4, 2, 5, 6, 3)]
    assert queue.add(tickets) == []
    tickets[0].score = Score.invalid("late")
    queue.remove_answered()
    assert queue.add([Ticket(request(7), 7, 0.0)]) == [] and len(queue) == 6
    assert [queue.take()[0][0].ticket.priority for _ in range(6)] == [2, 3, 4, 5, 6, 7]
    queue.add(tickets[1:3])
    assert queue.clear() == tickets[1:3] and len(queue) == 0


@pytest.mark.parametrize(
    "other",
    [
        {"instruction": "go right"}, {"kind": "pair"}, {"frames": request(8).frames}, {"first": request(8).first},
        {"frames": {"side": request(7).frames["top"]}}, {"state": np.ones(3, np.float32)},
        {"state_before": np.ones(3, np.float32)},
    ],
    ids=["words", "kind", "frames", "first frame", "camera", "state", "state before"],
)  # fmt: skip
def test_questions_that_differ_have_another_hash(other: dict[str, Any]) -> None:
    asked, differs = request(7), replace(request(7), **other)
    assert request_queue.hash_request(asked, "it") != request_queue.hash_request(differs, "it")
    assert request_queue.hash_request(differs, "it") == request_queue.hash_request(replace(differs, decision=3), "it")
    assert request_queue.hash_request(differs, "it") != request_queue.hash_request(differs, "another")


@pytest.mark.parametrize(
    "kind, given_up, codes", [("pair", False, [0, 1, 3]), ("pair", True, [1, 2, 3]), ("absolute", False, [1, 2, 3])]
)
def test_a_pair_shows_what_was_before_the_one_that_it_replaces(
    kind: ScoreKind, given_up: bool, codes: list[int]
) -> None:
    """Not of one that was given up, whose episode has ended."""
    shown = np.zeros((4, 1, 1, 3), np.uint8) + np.arange(4, dtype=np.uint8)[:, None, None, None]
    states = np.eye(3, dtype=np.float32)
    earlier = replace(request(), frames={"top": shown[:3]}, state_before=states[0], state=states[1])
    later = replace(request(decision=2), frames={"top": shown[1:]}, state_before=states[1], state=states[2])
    first, second = (Ticket(replace(each, kind=kind), 0, 0.0, slot="a") for each in (earlier, later))
    queue = RequestQueue(ToldScorer().traits, most=6, apart=False)
    queue.add([first])
    first.score = Score.invalid("late") if given_up else None
    assert queue.add([second]) == [first]
    asked = second.request
    assert asked.frames["top"][:, 0, 0, 0].tolist() == codes and asked.decision == 2
    assert asked.state_before is not None and np.array_equal(asked.state_before, states[codes[0]])
    assert np.array_equal(asked.state, states[2])


def test_pictures_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [Picture(np.full((2, 2, 3), code, np.uint8)) for code in range(5)]
    hashed: list[bytes] = []
    real = shared_images.hashlib.sha256
    monkeypatch.setattr(shared_images.hashlib, "sha256", lambda data: hashed.append(data) or real(data))
    found = set()
    for end in range(1, 6):
        frames = SharedImages({"top": tuple(shown[:end])})
        asked = replace(request(), frames=frames, first=SharedImages({"top": shown[0]}))
        found.add(request_queue.hash_request(asked, "it"))
        plain = replace(asked, frames=dict(frames), first=dict(asked.first))
        assert request_queue.hash_request(plain, "it") in found, "arrays are the same question"
    assert len(found) == 5
