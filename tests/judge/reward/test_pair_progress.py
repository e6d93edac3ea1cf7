"""Progress from changes stays within its bounds, keeps their order, and telescopes as a potential."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.reward.ledger import PotentialLedger, ScoredRollout
from embodied_rl.judge.reward.pair_progress import PairProgress, advance
from embodied_rl.judge.reward.score_table import RolloutScores, Scores

NAN = np.nan
CHANGE = st.one_of(st.just(NAN), st.floats(-1, 1))


def told(value: Array) -> Scores:
    return Scores(value, np.full(value.shape, NAN), ~np.isnan(value))


def join(
    pairs: PairProgress, change: list[float], number: list[int] | None = None, last: float = NAN, final: float = NAN
) -> tuple[list[float], float, list[float]]:
    """Rows, last and finals of one environment."""
    rows, numbers = np.array(change, float)[:, None], np.array(number or range(len(change)))[:, None]
    scores = RolloutScores(told(rows), told(np.full(rows.shape, final)), told(np.array([last])))
    found = pairs.join(scores, numbers)
    return found.rows.value[:, 0].tolist(), float(found.lasts.value[0]), found.finals.value[:, 0].tolist()


@given(progress=st.floats(0, 1), change=CHANGE, other=st.floats(-1, 1))
def test_bounds_and_order(progress: float, change: float, other: float) -> None:
    after = float(advance(np.array(progress), np.array(change)))
    assert 0 <= after <= 1
    if np.isnan(change):
        assert after == progress
    else:
        assert (after >= progress) if change >= 0 else (after <= progress)
        if other >= change:
            assert float(advance(np.array(progress), np.array(other))) >= after - 1e-12


def test_a_change_is_a_share_of_what_was_left_or_reached() -> None:
    rows, last, finals = join(PairProgress(1), [NAN, 0.5, 0.5, -0.5], last=1.0, final=-1.0)
    assert rows == pytest.approx([0.0, 0.5, 0.75, 0.375]) and last == 1.0
    assert finals == pytest.approx([0.0] * 4)


def test_a_missing_change_is_a_missing_score_and_moves_nothing() -> None:
    pairs = PairProgress(1)
    rows, last, _ = join(pairs, [NAN, 0.5, NAN, 0.5])
    assert rows == pytest.approx([0.0, 0.5, NAN, 0.75], nan_ok=True) and np.isnan(last)
    assert pairs.carried.tolist() == [0.75]


def test_an_episode_begins_at_nothing() -> None:
    pairs = PairProgress(1)
    assert join(pairs, [NAN, 1.0, NAN, 0.5], number=[0, 1, 0, 1], last=0.5)[0] == [0.0, 1.0, 0.0, 0.5]
    assert join(pairs, [NAN, 0.25], number=[0, 1])[0] == [0.0, 0.25], "nothing is carried into another episode"


def test_the_boundary_is_settled_once() -> None:
    """An answer about the boundary that came after it was settled changes nothing."""
    pairs = PairProgress(1)
    join(pairs, [NAN, 0.5], last=NAN)
    assert join(pairs, [0.9, 0.5], number=[2, 3])[0][1] == pytest.approx(0.75)


def test_a_state_restores_what_was_carried() -> None:
    pairs, other = PairProgress(1), PairProgress(1)
    join(pairs, [NAN, 0.5], last=0.5)
    state = pairs.state()
    pairs.carried[:] = 0
    other.load(state)
    assert join(other, [NAN, 1.0], number=[2, 3])[0][1] == 1.0 and other.carried.tolist() == [1.0]
    other.load(state)
    assert other.carried.tolist() == [0.75]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_shaping_of_an_episode_telescopes(data: st.DataObject) -> None:
    """Through the ledger, for any answers, losses and cuts; and the cuts change no potential."""
    length = data.draw(st.integers(1, 12), "decisions")
    changes = np.array(data.draw(st.lists(CHANGE, min_size=length + 1, max_size=length + 1), "changes"))
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, length), max_size=4), "cuts") - {length}), length]
    truncated = data.draw(st.booleans(), "truncated")
    ledger, pairs, parts = PotentialLedger(1), PairProgress(1), []
    for first, end in pairwise(cuts):
        rows = np.arange(first, end)[:, None]
        over = rows == length - 1
        scores = RolloutScores(
            told(changes[first:end, None]), told(np.where(over, changes[length], NAN)), told(changes[[end]])
        )
        found = pairs.join(scores, rows)
        parts.append(
            ledger.settle(
                ScoredRollout(
                    found.rows.value, found.lasts.value, found.finals.value, rows, np.full(rows.shape, 0.9),
                    over & (not truncated), over & truncated, np.ones(rows.shape, bool),
                )
            )
        )  # fmt: skip
    potential = np.concatenate([part.potential[:, 0] for part in parts])
    expected, before = [], 0.0
    for number, change in enumerate(changes):
        before = 0.0 if number == 0 else float(advance(np.array(before), np.array(change)))
        expected.append(before)
    np.testing.assert_allclose(potential, expected[:length], atol=1e-12)
    shaping = np.concatenate([part.shaping[:, 0] for part in parts])
    end = 0.9**length * expected[length] if truncated else 0.0
    assert (0.9 ** np.arange(length) * shaping).sum() == pytest.approx(end - expected[0], abs=1e-9)
