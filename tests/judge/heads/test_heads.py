"""The heads, where the right answer is known; their inputs, their labels, and their agreement with a scorer."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.judge.heads.agreement import measure_agreement
from embodied_rl.judge.heads.head_inputs import WORDS, HeadInputs, hash_words, shrink
from embodied_rl.judge.heads.heads import compare
from embodied_rl.judge.heads.labels import LabelMemory, Labels, hold_out
from tests.support.collecting import SPEC
from tests.support.heads import INPUTS, label, make, pack

HEADS = ("hash", "classifier", "ranking")
GREY = np.linspace(0, 1, 33)


def train(name: str, labels: Labels, times: int = 8, **options: Any) -> Any:
    head = make(name, batch=32, rate=3e-3, **options)
    for version in range(times):
        head.learn(labels, labels, version)
    return head


def test_a_table_tells_the_mean_of_what_it_was_told() -> None:
    """In closed form; and nothing about what it has not seen, which is not 0."""
    head = make("hash")
    head.learn(label([0.1, 0.1, 0.1, 0.9], [0.0, 1.0, 0.5, 0.25]), label([], []), 0)
    head.learn(label([0.9], [0.75]), label([], []), 1)
    assert head.predict(pack([0.1, 0.9])).tolist() == [0.5, 0.5]
    assert np.isnan(head.predict(pack([0.5]))).all()
    assert np.isnan(head.predict(pack([0.1], "go right"))).all(), "other words are another question"
    assert head.state()["counts"].tolist() == [3, 2]


def test_a_table_forgets_what_it_has_not_heard_of_for_longest() -> None:
    head = make("hash", entries=2)
    for version, grey in enumerate((0.1, 0.5, 0.1, 0.9)):
        head.learn(label([grey], [grey]), label([], []), version)
    known = ~np.isnan(head.predict(pack([0.1, 0.5, 0.9])))
    assert known.tolist() == [True, False, True]


def test_a_classifier_separates_what_can_be_separated() -> None:
    head = train("classifier", label(GREY, GREY > 0.5))
    said = head.predict(pack(GREY))
    assert ((said > 0.5) == (GREY > 0.5)).all()
    assert said[0] < 0.05 and said[-1] > 0.95


@pytest.mark.thorough
def test_a_classifier_of_what_cannot_be_told_apart_says_how_often_it_was_so() -> None:
    """The minimum of the cross entropy is the mean of the scores."""
    head = train("classifier", label(np.full(40, 0.5), np.arange(40) % 4 == 0), 12)
    assert head.predict(pack([0.5]))[0] == pytest.approx(0.25, abs=0.05)


def test_a_ranking_recovers_an_order_whatever_the_scale() -> None:
    """Of scores that are bent, and hardly differ at the upper end."""
    head = train("ranking", label(GREY, 1 - np.exp(-8 * GREY)))
    said = head.predict(pack(GREY))
    assert (np.diff(said[::4]) > 0).all()
    assert 0 < said.min() < 0.2 and 0.8 < said.max() < 1


@pytest.mark.thorough
def test_a_ranking_of_two_finds_the_odds_of_bradley_and_terry() -> None:
    """One observation wins three of four comparisons, so that u₁ - u₂ = log 3."""
    labels = label([0.0, 0.0, 1.0, 1.0], [0.2, 0.6, 0.4, 0.8])  # of the four pairs across, three are won by the bright
    head = train("ranking", labels, 12)
    dark, bright = head.evaluate(pack([0.0, 1.0]))
    assert bright - dark == pytest.approx(np.log(3), abs=0.25)


def test_equal_scores_are_a_tie() -> None:
    assert compare(np.array([0.3, 0.3, 0.2]), np.array([0.3, 0.2, 0.3])).tolist() == [0.5, 1.0, 0.0]
    head = train("ranking", label(GREY, np.full(33, 0.7)))
    assert np.ptp(head.evaluate(pack(GREY))) < 0.3


@pytest.mark.parametrize("name", HEADS)
def test_a_head_without_labels_says_nothing(name: str) -> None:
    assert np.isnan(make(name).predict(pack([0.1, 0.9]))).all()


@pytest.mark.parametrize("name", HEADS)
def test_a_state_is_everything(name: str) -> None:
    """Predictions now, and after further learning: to the bit, and without torch's random numbers."""
    labels, more = label(GREY, GREY), label(GREY[::2], GREY[::2] ** 2, first=100)
    before = torch.get_rng_state()
    head = train(name, labels, 3)
    again = make(name, batch=32, rate=3e-3)
    again.load(head.state())
    assert head.predict(pack(GREY)).tobytes() == again.predict(pack(GREY)).tobytes()
    for each in (head, again):
        each.learn(more, Labels.join([labels, more]), 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert head.predict(pack(GREY)).tobytes() == again.predict(pack(GREY)).tobytes()
    left, right = head.state(), again.state()
    assert left.keys() == right.keys()
    assert all(left[each].tobytes() == right[each].tobytes() for each in left)


@pytest.mark.parametrize("high, wide, to", [(8, 8, 4), (7, 5, 3), (64, 48, 16), (3, 3, 3)])
def test_small_pictures_are_means(high: int, wide: int, to: int) -> None:
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (2, high, wide, 3), dtype=np.uint8)
    small = shrink(pictures, to, to)
    rows, columns = np.arange(high) * to // high, np.arange(wide) * to // wide
    for y, x in np.ndindex(to, to):
        part = pictures[:, rows == y][:, :, columns == x].astype(int)
        assert (small[:, y, x] == part.sum((1, 2)) // (part.shape[1] * part.shape[2])).all()


def test_a_packed_observation_holds_pictures_state_and_words() -> None:
    camera = replace(SPEC.cameras[0], height=6, width=6)
    inputs = HeadInputs(replace(SPEC, cameras=(camera,)), 2)
    picture = np.full((1, 6, 6, 3), 255, np.uint8)
    state = np.linspace(-3, 3, len(SPEC.state_names), dtype=np.float32)[None]
    packed = inputs.pack({camera.name: picture}, state, ["Go left"])
    assert packed.shape == (1, inputs.size) and packed.dtype == np.uint8
    features = inputs.unpack(packed).numpy()[0]
    assert features.shape == (inputs.features,)
    assert (features[:12] == 0.5).all()
    np.testing.assert_allclose(features[12:-WORDS], state[0] / (1 + np.abs(state[0])), rtol=1e-6)
    assert (features[-WORDS:] == hash_words("go LEFT")).all() and features[-WORDS:].sum() == 2
    small = HeadInputs(replace(SPEC, cameras=(replace(camera, height=2, width=3),)), 16)
    assert small.features == 18 + len(SPEC.state_names) + WORDS, "small pictures keep their size"


def test_what_is_hashed_leaves_out_the_state_and_small_changes() -> None:
    camera = replace(SPEC.cameras[0], height=8, width=8)
    inputs = HeadInputs(replace(SPEC, cameras=(camera,)), 8)

    def coarse(grey: int, state: float, words: str = "go") -> bytes:
        picture = np.full((1, 8, 8, 3), grey, np.uint8)
        numbers = np.full((1, len(SPEC.state_names)), state, np.float32)
        return inputs.coarsen(inputs.pack({camera.name: picture}, numbers, [words])).tobytes()

    assert coarse(100, 0.0) == coarse(110, 1.0)
    assert coarse(100, 0.0) != coarse(200, 0.0) and coarse(100, 0.0) != coarse(100, 0.0, "stop")


def test_pictures_of_another_size_are_a_mistake_that_is_seen() -> None:
    camera = replace(SPEC.cameras[0], height=8, width=8)
    inputs = HeadInputs(replace(SPEC, cameras=(camera,)), 4)
    with pytest.raises(AssertionError, match="not 8 × 8"):
        inputs.pack({camera.name: np.zeros((1, 2, 2, 3), np.uint8)}, np.zeros((1, 3), np.float32), ["go"])


def test_what_comes_twice_counts_once() -> None:
    memory = LabelMemory(10, INPUTS.size)
    assert len(memory.add(label([0.1, 0.2], [0.1, 0.2]))) == 2
    again = Labels.join([label([0.2], [0.9], first=1), label([0.3, 0.3], [0.3, 0.4], first=2)])
    again.episode[2] = 2  # the same observation within one delivery
    fresh = memory.add(again)
    assert fresh.value.tolist() == [0.3] and memory.duplicates == 2
    assert memory.kept.value.tolist() == [0.1, 0.2, 0.3]


def test_the_newest_labels_are_kept() -> None:
    memory = LabelMemory(3, INPUTS.size)
    memory.add(label([0.1, 0.2], [0.1, 0.2]))
    memory.add(label([0.3, 0.4], [0.3, 0.4], first=2))
    assert memory.kept.value.tolist() == [0.2, 0.3, 0.4]
    assert len(memory.add(label([0.1], [0.5]))) == 1, "what was dropped may come again"


def test_a_state_keeps_labels_and_what_is_known() -> None:
    memory, again = (LabelMemory(3, INPUTS.size) for _ in range(2))
    memory.add(label([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]))
    memory.add(label([0.1], [0.1]))
    again.load(memory.state())
    assert again.duplicates == 1 and not len(again.add(label([0.2], [0.5], first=1)))
    assert again.kept.inputs.tobytes() == memory.kept.inputs.tobytes()


def test_the_same_episodes_are_held_out_everywhere() -> None:
    episodes = np.arange(10_000)
    chosen = hold_out(episodes, 0.1)
    assert 0.08 < chosen.mean() < 0.12
    assert (hold_out(episodes[::-1], 0.1)[::-1] == chosen).all()
    assert not hold_out(episodes, 0.0).any()


EPISODE = np.repeat(np.arange(20), 5)
SCORE = np.tile(np.linspace(0, 1, 5), 20)


def test_the_same_order_is_full_agreement_and_the_opposite_is_none() -> None:
    found = measure_agreement(SCORE**3, SCORE, EPISODE, 0)
    assert (found.share, found.low, found.high) == (1.0, 1.0, 1.0)
    assert found.error == pytest.approx(np.abs(SCORE**3 - SCORE).mean())
    assert measure_agreement(-SCORE, SCORE, EPISODE, 0).share == 0.0


def test_chance_is_one_half() -> None:
    assert measure_agreement(np.zeros(100), SCORE, EPISODE, 0).share == 0.5
    random = np.random.default_rng(0).random(100)
    found = measure_agreement(random, SCORE, EPISODE, 0)
    assert found.low < 0.5 < found.high and found.high - found.low > 0.05


@pytest.mark.thorough
def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Episodes have a bias of their own, so that labels of one are no independent ones."""
    random = np.random.default_rng(1)

    def draw(episodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        number = np.repeat(np.arange(episodes), 5)
        score = random.random(5 * episodes)
        return score + 0.5 * random.standard_normal(episodes)[number], score, number

    truth = measure_agreement(*draw(400), 0).share
    found = [measure_agreement(*draw(30), trial) for trial in range(60)]
    assert sum(each.low <= truth <= each.high for each in found) >= 50


def test_what_cannot_be_told_is_not_told() -> None:
    nothing = measure_agreement(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), 0)
    assert math.isnan(nothing.share) and math.isnan(nothing.low) and math.isnan(nothing.error)
    few = measure_agreement(SCORE[:10], SCORE[:10], EPISODE[:10], 0)
    assert few.share == 1.0 and math.isnan(few.low)
    wrong = measure_agreement(np.where(EPISODE < 10, np.nan, SCORE), np.where(EPISODE < 10, -SCORE, SCORE), EPISODE, 0)
    assert wrong.share == 1.0 and wrong.error == 0.0, "predictions that are NaN are left out"
