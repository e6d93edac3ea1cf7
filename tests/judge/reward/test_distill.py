"""The labels that a collector hands over; the head of a run, its learning and state; and the exact policy gradient."""

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
from embodied_rl.judge.heads.labels import PLACES, Labels, hold_out, list_columns, read_labels
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.reward.distill import Distiller, LabelWriter
from embodied_rl.judge.reward.scoring_writer import ScoringOptions
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import DistillNode, ProbesNode, RewardNode
from tests.support.collecting import SEED, SPEC, N, T, half_skilled, inline
from tests.support.distilling import GAMMA, hand_over, make_distiller, make_rollout, show
from tests.support.ended import wait_for
from tests.support.enumeration import GAMMA as DISCOUNT
from tests.support.enumeration import HORIZON, STATES, TRUE, error
from tests.support.enumeration import Path as Course
from tests.support.heads import label, pack
from tests.support.scoring import ToldScorer, request

WRITER_INPUTS = HeadInputs(SPEC, 4)
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
        rollout = Rollout.allocate(half_skilled(), T, N, extras=list_columns(WRITER_INPUTS))
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


def test_answers_that_never_come_or_are_unsure_are_no_labels(collecting: Callable[..., Any]) -> None:
    def sometimes(asked: ScoreRequest) -> Score:
        if asked.decision % 2:
            raise ScorerError("refused", "not this one")
        return replace(judge(asked), confidence=0.4 + 0.2 * (asked.episode % 2))

    collector, writer = collecting(ToldScorer(sometimes, cacheable=False), confidence=0.5)
    labels = read_labels(collector.collect(half_skilled()).extras)
    assert len(labels) and not (labels.decision % 2).any() and (labels.episode % 2).all()
    assert len(labels) < writer.figures()["valid"] < writer.figures()["resolved"]


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
        rollout = Rollout.allocate(half_skilled(), T, N, extras=list_columns(WRITER_INPUTS))
        writer._settle(rollout)
        found.append(read_labels(rollout.extras).decision)
    assert [len(each) for each in found] == [PLACES * T * N, 10]
    assert np.concatenate(found).tolist() == list(range(PLACES * T * N + 10))


HEADS = ("hash", "classifier", "ranking")
GREYS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])


def rollout_of(brightness: Any, last: Any, labels: Labels | None = None, first: int = 0) -> Rollout:
    """One environment in the middle of an episode, unless `first` is 0."""
    rollout = make_rollout(len(brightness))
    rollout.decision += first
    show(rollout, "seen", np.asarray(brightness)[:, None])
    show(rollout, "last", [last])
    if labels is not None:
        hand_over(rollout, labels)
    return rollout


def test_predictions_are_potentials_and_not_the_scores_of_the_judge() -> None:
    """In closed form, across the end of a rollout. What a rollout brings counts from the next one on."""
    distiller = make_distiller()
    teaching = rollout_of(GREYS, 0.1, label(GREYS, GREYS**2))
    distiller.settle(teaching)
    assert not teaching.shaping.any(), "its own labels came with it"
    assert distiller.version == 1
    rollout = rollout_of(GREYS[[0, 2, 4]], 0.3)
    distiller.settle(rollout)
    value = np.array([0.1, 0.5, 0.9, 0.3]) ** 2
    np.testing.assert_allclose(rollout.shaping[:, 0], GAMMA * value[1:] - value[:-1], atol=1e-6)
    np.testing.assert_allclose(rollout.potential[:, 0], value[:-1], atol=1e-6)
    assert not rollout.bonus.any()
    assert distiller.figures()["reward/head_share"] == pytest.approx(3 / 8)


def test_an_answer_that_comes_twice_teaches_once() -> None:
    distiller, once = make_distiller(), make_distiller()
    labels = label(GREYS[:4], GREYS[:4])
    distiller.settle(rollout_of(GREYS, 0.1, Labels.join([labels, label([0.1], [0.9])])))
    distiller.settle(rollout_of(GREYS, 0.1, labels, first=5))
    once.settle(rollout_of(GREYS, 0.1, labels))
    assert distiller._head.state()["sums"].tobytes() == once._head.state()["sums"].tobytes()
    assert distiller.version == 1, "nothing new came the second time"


def test_what_was_settled_stays_when_the_head_learns_better() -> None:
    """The boundary of two rollouts has one potential, that of the version which settled it."""
    distiller = make_distiller()
    distiller.settle(rollout_of(GREYS, 0.1, label(GREYS, np.zeros(5))))
    distiller.settle(rollout_of(GREYS, 0.5, label(GREYS, np.ones(5), first=10)))
    third = rollout_of([0.5, 0.7], 0.9, first=5)
    distiller.settle(third)
    assert third.potential[:, 0].tolist() == [0.0, 0.5], "first the old opinion, then the mean of both"


@pytest.mark.parametrize("name", HEADS)
def test_lost_answers_are_held_or_generalised_and_never_0(name: Any) -> None:
    """Only the darkest and the brightest picture were ever judged."""
    distiller = make_distiller(head=name, steps=64, rate=3e-3)
    distiller.settle(rollout_of(GREYS, 0.1, label([0.1, 0.9] * 2, [0.1, 0.9] * 2)))
    rollout = rollout_of([0.9, 0.7, 0.1], 0.9)
    distiller.settle(rollout)
    first, unseen, low = rollout.potential[:, 0].tolist()
    assert first > 0.6 > 0.4 > low
    assert unseen == first if name == "hash" else low < unseen < first
    share = distiller.figures()["reward/head_share"]
    assert share == pytest.approx((2 if name == "hash" else 3) / 8)


@pytest.mark.parametrize("name", HEADS)
def test_ends_are_worth_what_they_must_be(name: Any) -> None:
    """Nothing after a termination, the final observation after a truncation."""
    distiller = make_distiller(head=name, num_envs=2)
    teaching = make_rollout(5, 2)
    hand_over(teaching, label(GREYS, GREYS))
    distiller.settle(teaching)
    rollout = make_rollout(1, 2)
    show(rollout, "seen", [[0.5, 0.5]])
    show(rollout, "final", [[0.0, 0.9]])
    show(rollout, "last", [0.1, 0.1])
    rollout.terminated[0, 0] = rollout.truncated[0, 1] = True
    distiller.settle(rollout)
    half, end = distiller_values(distiller, rollout)
    np.testing.assert_allclose(rollout.shaping[0], [-half, GAMMA * end - half], atol=1e-6)


def distiller_values(distiller: Any, rollout: Rollout) -> tuple[float, float]:
    potential = rollout.potential[0, 0].item()
    return potential, float(distiller._head.predict(pack([0.9]))[0])


def test_a_bonus_is_the_prediction_itself_where_it_is_asked_for() -> None:
    distiller = make_distiller(bonus=True, weight=0.5)
    distiller.settle(rollout_of(GREYS, 0.1, label(GREYS, GREYS)))
    rollout = rollout_of([0.1, 0.3, 0.5], 0.9)
    rollout.terminated[1] = True
    distiller.settle(rollout)
    np.testing.assert_allclose(rollout.bonus[:, 0], [0.15, 0.0, 0.45], atol=1e-6)
    assert not rollout.shaping.any()


def test_no_head_learns_from_what_it_is_compared_on() -> None:
    distiller = make_distiller(held_out=0.5)
    labels = label(np.linspace(0.01, 0.99, 40), np.linspace(0, 1, 40))
    rollout = make_rollout(40)
    hand_over(rollout, labels)
    distiller.settle(rollout)
    out = hold_out(labels.episode, 0.5)
    assert 10 < out.sum() < 30
    assert distiller._learned.kept.episode.tolist() == labels.episode[~out].tolist()
    assert distiller._held_out.kept.episode.tolist() == labels.episode[out].tolist()


@pytest.mark.parametrize("name", ["classifier", "ranking"])
def test_agreement_is_told_with_an_interval(name: Any) -> None:
    distiller = make_distiller(head=name, held_out=0.5, steps=64, rate=3e-3)
    greys = np.linspace(0.01, 0.99, 40)
    for place in range(2):
        rollout = make_rollout(40)
        hand_over(rollout, label(greys, greys, first=100 * place))
        distiller.settle(rollout)
    told = distiller.figures()
    assert told["reward/head_agreement"] > 0.9
    assert told["reward/head_agreement_low"] <= told["reward/head_agreement"] <= told["reward/head_agreement_high"]
    assert ("reward/head_error" in told) == (name == "classifier")
    assert told["reward/head_version"] == 2 and told["reward/head_loss"] > 0


@pytest.mark.parametrize("name", HEADS)
def test_a_resumed_head_goes_on_to_the_bit(name: Any) -> None:
    """Its weights, its labels, those held out, and the potential that was carried."""
    straight, resumed = (make_distiller(head=name, held_out=0.3) for _ in range(2))
    labels = [label(GREYS, GREYS ** (1 + place), first=5 * place) for place in range(4)]
    rollouts = [[rollout_of(GREYS, 0.3, each, first=5 * place) for place, each in enumerate(labels)] for _ in range(2)]
    for rollout in rollouts[0]:
        straight.settle(rollout)
    for place, rollout in enumerate(rollouts[1]):
        if place == 2:
            state = resumed.state()
            resumed = make_distiller(head=name, held_out=0.3)
            resumed.load(state)
        resumed.settle(rollout)
    for left, right in zip(*rollouts, strict=True):
        assert torch.equal(left.shaping, right.shaping)
    assert rollouts[0][3].shaping.any()
    left, right = straight.state(), resumed.state()
    assert left.keys() == right.keys() and all(torch.equal(left[each], right[each]) for each in left)


class TwoRanks(Ranks):
    """One of two ranks that run one after the other: what a rank gathered is given to it beforehand."""

    size = 2

    def __init__(self, rank: int, told: list[list[Any]]) -> None:
        self.rank, self._told, self.said = rank, told, list[Any]()

    def gather(self, value: Any, *kinds: type[Any]) -> list[Any]:
        self.said.append(value)
        return self._told.pop(0)


@pytest.mark.parametrize("name", HEADS)
def test_all_ranks_have_one_head_that_learns_from_everybody(name: Any) -> None:
    """The same as one rank of all environments, whoever brought which label."""
    greys = np.stack([GREYS, GREYS[::-1]], axis=1)
    labels = [label(GREYS[:3], GREYS[:3]), label(GREYS[3:], GREYS[3:] ** 2, first=3)]
    rollouts = [rollout_of(greys[:, place], 0.3, labels[place]) for place in range(2)]
    whole = make_rollout(5, 2)
    show(whole, "seen", greys)
    show(whole, "last", [0.3, 0.3])
    hand_over(whole, Labels.join(labels[::-1]))
    alone = make_distiller(num_envs=2, head=name)
    alone.settle(whole)
    gathered = [(vars(each), {"decisions": 5, "scored": 0, "held": 5, "settled": 5}) for each in labels]
    first = TwoRanks(0, [gathered, [None, None]])
    with pytest.raises(TypeError):
        make_distiller(ranks=first, head=name).settle(rollouts[0])  # nobody answers its second call
    second = TwoRanks(1, [gathered, [first.said[1], None]])
    distiller = make_distiller(ranks=second, head=name)
    distiller.settle(rollouts[1])
    for each, array in alone._head.state().items():
        assert distiller._head.state()[each].tobytes() == array.tobytes(), each
    assert distiller.version == 1 and distiller.figures()["reward/head_version"] == 1


def test_columns_come_through_parts_and_segments() -> None:
    whole = Rollout.allocate(half_skilled(), 4, 2, extras=list_columns(WRITER_INPUTS))
    whole.extras["seen"].fill_(7)
    first, second = whole.segments(2)
    assert first.extras["seen"].shape == (2, 2, WRITER_INPUTS.size) and (second.extras["seen"] == 7).all()
    second.extras["last"].fill_(3)
    assert not first.extras["last"].any() and "extras/seen" not in whole.batch()
    whole.clear()
    assert not whole.extras["seen"].any()
    assert torch.equal(first.extras["labelled"], torch.zeros(2, 2, 2, dtype=torch.bool))


CUTS = [(0, 3), (3, 6), (6, HORIZON)]
OPINION = np.random.default_rng(3).uniform(0, 1, (HORIZON + 1, STATES))
"""What the judge says at a decision of a state: nothing true, and never the same twice."""
BRIGHTNESS = np.minimum(16 + 32 * np.arange(STATES), 255) / 255
BEFORE = label(BRIGHTNESS[:6], OPINION[0, :6], first=1000)
"""What the head has learned before the episode: not about all states."""


def collect_part(path: Course, first: int, end: int, answered: Callable[[int], bool]) -> Rollout:
    """Decisions first … end of an episode; places after its end are not valid, so that sizes are always the same."""
    rollout = make_rollout(end - first)
    rollout.shaping, rollout.potential, rollout.bonus = (torch.zeros(end - first, 1).double() for _ in range(3))
    taken = len(path.actions)
    there = np.arange(first, end)
    states = np.array(path.states)[np.minimum(there, taken)]
    rollout.decision.copy_(torch.from_numpy(there)[:, None])
    rollout.valid.copy_(torch.from_numpy(there < taken)[:, None])
    rollout.terminated.copy_(torch.from_numpy(there == taken - 1)[:, None])
    show(rollout, "seen", BRIGHTNESS[states][:, None])
    show(rollout, "last", BRIGHTNESS[[path.states[min(end, taken)]]])
    told = [t for t in there if t < taken and answered(int(t))]
    labels = label(BRIGHTNESS[[path.states[t] for t in told]], OPINION[told, [path.states[t] for t in told]])
    hand_over(rollout, Labels(labels.inputs, labels.value, np.zeros(len(told), np.int64), np.array(told, np.int64)))
    return rollout


def shape(
    path: Course,
    head: str,
    answered: Callable[[int], bool] = lambda t: True,
    settle: Callable[[Distiller, Rollout], None] = Distiller.settle,
    **options: Any,
) -> np.ndarray:
    """What an episode's decisions get beside the reward, by a head that learns while it runs."""
    distiller = make_distiller(head=head, gamma=DISCOUNT, steps=1, batch=4, **options)
    teaching = make_rollout(6)
    hand_over(teaching, BEFORE)
    distiller.settle(teaching)
    found = []
    for first, end in CUTS:
        if first < len(path.actions):
            rollout = collect_part(path, first, end, answered)
            settle(distiller, rollout)
            found.append((rollout.shaping + rollout.bonus)[rollout.valid].numpy())
    assert distiller.version > 1 or not answered(0)
    return np.concatenate(found)


@pytest.mark.thorough
@pytest.mark.parametrize("head", HEADS)
def test_predictions_of_a_head_that_learns_meanwhile_leave_the_gradient_as_it_is(head: str) -> None:
    assert np.abs(TRUE).max() > 0.02
    assert error(lambda path: shape(path, head)) <= 1e-12


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["hash"])
def test_lost_answers_and_a_history_that_decides_about_them_do_too(head: str) -> None:
    assert error(lambda path: shape(path, head, lambda t: t > 0 and path.states[t] > path.states[t - 1])) <= 1e-12


def look_ahead(distiller: Distiller, rollout: Rollout) -> None:
    """Learn from a rollout before judging it."""
    there = rollout.extras["labelled"].clone()
    teaching = make_rollout(len(there))
    for name in ("label", "label_value", "label_episode", "label_decision", "labelled"):
        teaching.extras[name].copy_(rollout.extras[name])
    carried = distiller._ledger.carried
    distiller.settle(teaching)
    distiller._ledger.carried = carried
    distiller.settle(rollout)


def reconsider(distiller: Distiller, rollout: Rollout) -> None:
    """At the boundary of two rollouts, take what the head says now for what it said then."""
    distiller.settle(rollout)
    if rollout.valid[-1]:
        predicted = distiller._head.predict(rollout.extras["last"].numpy())
        distiller._ledger.carried = np.where(np.isnan(predicted), distiller._ledger.carried, predicted)


@pytest.mark.thorough
@pytest.mark.parametrize("settle, head", [(look_ahead, "hash"), (look_ahead, "ranking"), (reconsider, "hash")])
def test_what_comes_later_may_not_change_a_potential(settle: Any, head: str) -> None:
    """So the check can fail."""
    assert error(lambda path: shape(path, head, settle=settle)) > 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["hash", "classifier"])
def test_a_prediction_as_a_reward_changes_what_is_optimal(head: str) -> None:
    assert error(lambda path: shape(path, head, bonus=True)) > 1e-2


@pytest.mark.thorough
def test_pictures_of_states_differ() -> None:
    """Or the head could not tell them apart, and the check would say nothing."""
    distiller = make_distiller()
    keys = distiller._head._hash(pack(BRIGHTNESS[:8]))
    assert len(set(keys)) == 8
