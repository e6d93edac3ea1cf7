"""Counter-based noise: the generator's published answers, its distributions, and independence of batching."""

import numpy as np
import pytest
import scipy  # which imports its parts when they are used
import torch

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.noise import (
    NoiseStream,
    as_choice,
    draw_normal,
    draw_words,
    philox,
)

PUBLISHED = [  # Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, answer
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), PUBLISHED)
def test_philox_gives_the_published_answers(counter, key, answer):
    """Alone, and as one of several columns."""
    columns = np.array([counter, (1, 2, 3, 4)], np.uint64).T
    assert tuple(philox(columns, key)[:, 0]) == answer
    assert tuple(philox(columns[:, ::-1], key)[:, 1]) == answer


def test_rows_do_not_depend_on_the_batch(make_keys):
    """Any split or order of the rows gives the same noise, bit for bit, and so does a longer draw."""
    keys = make_keys(37, seed=5, decision=3)
    together = draw_normal(keys, NoiseStream.INJECTED, (5, 3))
    for rows in (np.arange(1), np.arange(10, 17), np.arange(37)[::-1]):
        part = NoiseKeys(5, keys.episode[rows], keys.decision[rows])
        assert torch.equal(draw_normal(part, NoiseStream.INJECTED, (5, 3)), together[rows.copy()])
    assert torch.equal(draw_normal(keys, NoiseStream.INJECTED, (20,))[:, :15], together.flatten(1))


def test_joint_draws_equal_separate_ones(make_keys):
    """Several streams in one pass give what each gives alone."""
    keys = make_keys(6, seed=2**63 + 11)
    words = draw_words(keys, {NoiseStream.INITIAL: 7, NoiseStream.STEP: 1, NoiseStream.INJECTED: 9})
    for stream, value in words.items():
        np.testing.assert_array_equal(value, draw_words(keys, {stream: value.shape[1]})[stream])


@pytest.mark.parametrize(
    ("seed", "episode", "decision", "stream"),
    [(1, 0, 0, 0), (2**32, 0, 0, 0), (0, 1, 0, 0), (0, 2**32, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 2**28 - 1, 2)],
)
def test_every_part_of_the_key_matters(seed, episode, decision, stream):
    """A change of any one of them, in its high bits too, gives unrelated words."""
    reference = draw_words(NoiseKeys(0, np.array([0]), np.array([0])), {NoiseStream.INITIAL: 64})
    other = draw_words(NoiseKeys(seed, np.array([episode]), np.array([decision])), {NoiseStream(stream): 64})
    assert not np.isin(other[NoiseStream(stream)], reference[NoiseStream.INITIAL]).any()


def test_normals_are_standard_and_independent(make_keys):
    """Kolmogorov-Smirnov over all entries; no correlation of neighbouring episodes, positions or streams."""
    keys = make_keys(2_000, seed=7)
    x = draw_normal(keys, NoiseStream.INITIAL, (20,)).double().numpy()
    assert scipy.stats.kstest(x.ravel(), "norm").pvalue > 1e-3
    other = draw_normal(keys, NoiseStream.INJECTED, (20,)).double().numpy()
    pairs = [(x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x, other)]
    for a, b in pairs:
        assert abs(np.mean(a * b)) < 4.5 / np.sqrt(a.size)


def test_choice_follows_its_weights(make_keys):
    """Frequencies within 4.5 standard errors; a weight of 0 is never drawn."""
    words = draw_words(make_keys(40_000, seed=1), {NoiseStream.STEP: 1})[NoiseStream.STEP][:, 0]
    drawn = as_choice(words, torch.tensor([0.0, 1.0, 3.0, 0.0]))
    assert drawn.dtype == torch.int64
    assert set(drawn.tolist()) == {1, 2}
    assert abs(float((drawn == 2).float().mean()) - 0.75) < 4.5 * np.sqrt(0.75 * 0.25 / 40_000)


def test_choice_at_the_ends():
    """The smallest and the largest word stay inside the range."""
    ends = np.array([0, 2**32 - 1], np.uint64)
    assert as_choice(ends, torch.tensor([0.0, 0.1, 0.2, 0.7, 0.0])).tolist() == [1, 3]


def test_extreme_words_give_finite_normals(make_keys, monkeypatch):
    """The inverse distribution function is never asked for 0 or 1."""
    monkeypatch.setattr(
        "embodied_rl.mathematics.flow.noise.philox", lambda c, key: np.where(c[:1] == 0, 0, 2**32 - 1) + 0 * c
    )
    x = draw_normal(make_keys(2), NoiseStream.INITIAL, (4,))
    assert torch.isfinite(x).all()


def test_bad_keys_are_refused():
    """A seed or a decision counter that would collide with another one's noise."""
    one = np.array([0])
    with pytest.raises(ValueError, match="seed"):
        draw_words(NoiseKeys(-1, one, one), {NoiseStream.STEP: 1})
    for decision in (-1, 2**28):
        with pytest.raises(ValueError, match="decision"):
            draw_words(NoiseKeys(0, one, np.array([decision])), {NoiseStream.STEP: 1})


def test_no_rows(make_keys):
    """An empty batch is no special case."""
    assert draw_normal(make_keys(0), NoiseStream.INITIAL, (3, 2)).shape == (0, 3, 2)
