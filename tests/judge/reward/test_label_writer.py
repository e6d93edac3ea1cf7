"""What a collector tells the head of a run: each observation, and answers whenever they come."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.judge.heads.head_inputs import HeadInputs
from embodied_rl.judge.heads.labels import PLACES, list_columns, read_labels
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.reward.distill import LabelWriter
from embodied_rl.judge.reward.scoring_writer import ScoringOptions
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.schema import DistillNode, ProbesNode, RewardNode
from tests.support.collecting import SEED, SPEC, N, T, half_skilled, inline
from tests.support.ended import wait_for
from tests.support.scoring import ToldScorer, request

INPUTS = HeadInputs(SPEC, 4)
NODE = RewardNode(
    name="told",
    mode="distill",
    wait_share=None,
    deadline=60.0,
    in_flight=8,
    probes=ProbesNode(mismatch=0.0),
    distill=DistillNode(pixels=4),
)


@pytest.fixture
def collecting(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., tuple[Collector, LabelWriter]]:
    def make(scorer: Any, number: int = 0, **changes: Any) -> tuple[Collector, LabelWriter]:
        options = ScoringOptions(
            replace(NODE, **changes), (lambda _config, _spec: scorer, None), SPEC, T, Discount(0.9), limit_ends=False,
            collectors=1, folder=str(tmp_path),
        )  # fmt: skip
        writer = LabelWriter(options, number)
        request.addfinalizer(writer.close)
        rollout = Rollout.allocate(half_skilled(), T, N, extras=list_columns(INPUTS))
        sampler = EpisodeSampler(SPEC, SEED)
        return Collector(inline(2), SPEC, N // 2, sampler, rollout, SEED, writers=[writer]), writer

    return make


def judge(asked: ScoreRequest) -> Score:
    """Each observation has a score of its own."""
    return Score((asked.episode % 50) / 100 + asked.decision / 10)


def test_everything_seen_is_noted_and_every_answer_is_a_label(collecting: Callable[..., Any]) -> None:
    scorer = ToldScorer(judge, cacheable=False)
    collector, writer = collecting(scorer)
    actor, seen = half_skilled(), 0
    for _ in range(3):
        rollout = collector.collect(actor)
        labels = read_labels(rollout.extras)
        assert len(labels) == writer.figures()["labels"] == writer.figures()["resolved"]
        assert not rollout.shaping.any() and not rollout.bonus.any(), "nothing is settled here"
        by_name = {(e, d): x for e, d, x in zip(labels.episode, labels.decision, labels.inputs, strict=True)}
        assert all(
            v == e % 50 / 100 + d / 10 for e, d, v in zip(labels.episode, labels.decision, labels.value, strict=True)
        )
        for t, n in np.argwhere(rollout.valid.numpy()):
            found = by_name.get((int(rollout.episode[t, n]), int(rollout.decision[t, n])))
            if found is not None:
                assert (rollout.extras["seen"][t, n].numpy() == found).all()
                seen += 1
            if rollout.truncated[t, n]:
                end = by_name[int(rollout.episode[t, n]), int(rollout.decision[t, n]) + 1]
                assert (rollout.extras["final"][t, n].numpy() == end).all()
    assert seen > 2 * T * N


def test_answers_that_come_late_are_labels_of_a_later_rollout(collecting: Callable[..., Any]) -> None:
    """Nobody waits, nothing is lost, nothing comes twice."""
    gate = threading.Event()
    scorer = ToldScorer(judge, gate=gate, cacheable=False)
    collector, writer = collecting(scorer, wait_share=0.02)
    actor = half_skilled()
    first = collector.collect(actor)
    assert not first.extras["labelled"].any()
    asked = writer.figures()["open"]
    assert asked == writer.figures()["asked"] > 0
    gate.set()
    wait_for(lambda: sum(writer._service.counts.values()) == asked)
    second = collector.collect(actor)
    wait_for(lambda: writer._service.counts["ok"] == asked + writer.figures()["asked"])
    third = collector.collect(actor)
    labels = [read_labels(each.extras) for each in (second, third)]
    del first
    names = [(int(e), int(d)) for each in labels[1:] for e, d in zip(each.episode, each.decision, strict=True)]
    assert len(names) == len(set(names)) > 0
    assert third.extras["labelled"].sum() > 0


def test_answers_that_never_come_are_no_labels(collecting: Callable[..., Any]) -> None:
    def sometimes(asked: ScoreRequest) -> Score:
        if asked.decision % 2:
            raise ScorerError("refused", "not this one")
        return judge(asked)

    collector, writer = collecting(ToldScorer(sometimes, cacheable=False), confidence=0.0)
    labels = read_labels(collector.collect(half_skilled()).extras)
    assert len(labels) and not (labels.decision % 2).any()
    assert writer.figures()["valid"] == len(labels) < writer.figures()["resolved"]


def test_unsure_answers_are_no_labels(collecting: Callable[..., Any]) -> None:
    unsure = ToldScorer(lambda asked: Score(0.5, confidence=0.4), cacheable=False)
    collector, _ = collecting(unsure, confidence=0.5)
    assert not len(read_labels(collector.collect(half_skilled()).extras))


def test_the_newest_observations_are_asked_about_first(collecting: Callable[..., Any]) -> None:
    gate = threading.Event()
    scorer = ToldScorer(judge, gate=gate, cacheable=False)
    collector, writer = collecting(scorer, wait_share=0.02, in_flight=1)
    collector.collect(half_skilled())
    gate.set()
    wait_for(lambda: sum(writer._service.counts.values()) == writer.figures()["asked"])
    order = [call[0].decision + 3 * (call[0].episode // N) for call in scorer.calls[1:]]
    assert order[0] >= order[-1] and np.corrcoef(order, np.arange(len(order)))[0, 1] < -0.9


def test_what_waits_is_bounded(collecting: Callable[..., Any]) -> None:
    """A server that answers nothing costs no more memory than two rollouts' questions."""
    scorer = ToldScorer(judge, gate=threading.Event(), cacheable=False)
    collector, writer = collecting(scorer, wait_share=0.02)
    actor = half_skilled()
    for _ in range(4):
        collector.collect(actor)
    assert len(writer._open) <= 2 * T * N
    assert isinstance(writer._open[-1], Ticket)
    assert writer._service.counts["late"] + writer._service.counts["dropped"] > 0


def test_more_labels_than_places_wait_for_the_next_rollout(collecting: Callable[..., Any]) -> None:
    _, writer = collecting(ToldScorer(judge))
    camera = SPEC.cameras[0]
    picture = np.zeros((1, camera.height, camera.width, 3), np.uint8)
    shown, count = {"frames": {camera.name: picture}, "first": {camera.name: picture[0]}}, PLACES * T * N + 10
    state = np.zeros(len(SPEC.state_names), np.float32)
    asked = [replace(request(decision=each), state=state, **shown) for each in range(count)]
    writer._ready = [Ticket(each, 0, 0.0, Score(0.5)) for each in asked]
    found = []
    for _ in range(2):
        rollout = Rollout.allocate(half_skilled(), T, N, extras=list_columns(INPUTS))
        writer._settle(rollout)
        found.append(read_labels(rollout.extras).decision)
    assert [len(each) for each in found] == [PLACES * T * N, 10]
    assert np.concatenate(found).tolist() == list(range(PLACES * T * N + 10))


def test_columns_come_through_parts_and_segments() -> None:
    whole = Rollout.allocate(half_skilled(), 4, 2, extras=list_columns(INPUTS))
    whole.extras["seen"].fill_(7)
    first, second = whole.segments(2)
    assert first.extras["seen"].shape == (2, 2, INPUTS.size) and (second.extras["seen"] == 7).all()
    second.extras["last"].fill_(3)
    assert not first.extras["last"].any() and "extras/seen" not in whole.batch()
    whole.clear()
    assert not whole.extras["seen"].any()
    assert torch.equal(first.extras["labelled"], torch.zeros(2, 2, 2, dtype=torch.bool))
