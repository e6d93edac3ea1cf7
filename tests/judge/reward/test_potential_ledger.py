"""Settled potentials add up, whatever arrives, wherever rollouts are cut."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.judge.reward.potential_ledger import PotentialLedger, ScoredRollout, Settlement

NAN = np.nan


def one_environment(
    score: list[float], *, numbers: list[int] | None = None, terminated: int = -1, truncated: int = -1,
    last: float = NAN, final: float = NAN, discount: float = 0.9, ledger: PotentialLedger | None = None,
    lost: tuple[int, ...] = (),
) -> Settlement:  # fmt: skip
    """A rollout of one environment; `terminated` and `truncated` are rows, -1 for none."""
    size = (len(score), 1)
    rows = np.arange(len(score)).reshape(size)
    finals = np.where(rows == truncated, final, NAN)
    return (ledger or PotentialLedger(1)).settle(
        ScoredRollout(
            np.array(score, float).reshape(size), np.array([last]), finals,
            np.array(numbers or range(len(score))).reshape(size), np.full(size, discount),
            rows == terminated, rows == truncated, ~np.isin(rows, lost),
        )
    )  # fmt: skip


def test_each_row_is_the_discounted_difference() -> None:
    settled = one_environment([0.1, 0.4, 0.7], last=0.8)
    np.testing.assert_allclose(settled.shaping[:, 0], [0.9 * 0.4 - 0.1, 0.9 * 0.7 - 0.4, 0.9 * 0.8 - 0.7])


def test_a_termination_is_worth_nothing() -> None:
    settled = one_environment([0.1, 0.4, 0.2], numbers=[0, 1, 0], terminated=1, last=0.3)
    np.testing.assert_allclose(settled.shaping[:, 0], [0.9 * 0.4 - 0.1, -0.4, 0.9 * 0.3 - 0.2])


def test_a_truncation_is_worth_its_final_observation() -> None:
    settled = one_environment([0.1, 0.4, 0.2], numbers=[0, 1, 0], truncated=1, final=0.6, last=0.3)
    assert settled.shaping[1, 0] == pytest.approx(0.9 * 0.6 - 0.4)
    unscored = one_environment([0.1, 0.4, 0.2], numbers=[0, 1, 0], truncated=1, last=0.3)
    assert unscored.shaping[1, 0] == pytest.approx(0.9 * 0.4 - 0.4), "the last settled value is held"


def test_a_missing_score_holds_the_last_one_of_its_episode() -> None:
    settled = one_environment([0.5, NAN, NAN, NAN], numbers=[0, 1, 0, 1], terminated=1)
    assert settled.potential[:, 0].tolist() == [0.5, 0.5, 0.0, 0.0], "nothing is held beyond an episode"
    assert settled.held[:, 0].tolist() == [False, True, True, True]


def test_what_was_settled_at_the_end_of_a_rollout_is_used_in_the_next() -> None:
    """Even where its score, or another one, has come in between."""
    ledger = PotentialLedger(1)
    one_environment([0.2, 0.3], last=NAN, ledger=ledger)
    assert ledger.carried.tolist() == [0.3], "no score came: the last one is held"
    settled = one_environment([0.9, 0.5], numbers=[2, 3], ledger=ledger)
    assert settled.potential[0, 0] == 0.3
    assert not settled.held[0, 0], "it was counted when it was settled"


def test_nothing_is_carried_beyond_an_end_or_a_loss() -> None:
    for options in ({"terminated": 1}, {"truncated": 1, "final": 0.5}, {"lost": (0, 1)}):
        ledger = PotentialLedger(1)
        one_environment([0.2, 0.3], last=0.7, ledger=ledger, **options)
        assert ledger.carried.tolist() == [0.0], options


def test_rows_that_are_not_valid_have_no_shaping() -> None:
    settled = one_environment([0.2, 0.3, 0.4], numbers=[0, 1, 0], lost=(0, 1), last=0.6)
    assert settled.shaping[:, 0].tolist() == [0.0, 0.0, pytest.approx(0.9 * 0.6 - 0.4)]


def test_a_state_restores_what_was_carried() -> None:
    ledger, other = PotentialLedger(2), PotentialLedger(2)
    ledger.carried[:] = [0.25, 0.5]
    state = ledger.state()
    ledger.carried[0] = 1
    other.load(state)
    assert other.carried.tolist() == [0.25, 0.5]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_shaping_of_an_episode_telescopes(data: st.DataObject) -> None:
    """Σ γ^t F_t is -Φ_0 after a termination and γ^T Φ_T - Φ_0 after a truncation: for any scores, losses and cuts."""
    length = data.draw(st.integers(1, 12), "decisions")
    value = st.one_of(st.just(NAN), st.floats(0, 1))
    scores = np.array(data.draw(st.lists(value, min_size=length + 1, max_size=length + 1), "scores"))
    discount = np.array(data.draw(st.lists(st.floats(0.5, 1), min_size=length, max_size=length), "discounts"))
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, length), max_size=4), "cuts") - {length}), length]
    truncated = data.draw(st.booleans(), "truncated")
    ledger, parts = PotentialLedger(1), []
    for first, end in pairwise(cuts):
        size, over = (end - first, 1), np.arange(first, end)[:, None] == length - 1
        parts.append(
            ledger.settle(
                ScoredRollout(
                    scores[first:end, None], scores[[end]], np.where(over, scores[length], NAN),
                    np.arange(first, end)[:, None], discount[first:end, None], over & (not truncated),
                    over & truncated, np.ones(size, bool),
                )
            )
        )  # fmt: skip
    shaping = np.concatenate([part.shaping[:, 0] for part in parts])
    begun, ended = parts[0].potential[0, 0], parts[-1].following[-1, 0]
    weights = np.cumprod(np.concatenate([[1.0], discount[:-1]]))
    expected = (np.prod(discount) * ended if truncated else 0.0) - begun
    assert (weights * shaping).sum() == pytest.approx(expected, abs=1e-9)
    assert begun == (0.0 if np.isnan(scores[0]) else scores[0])
