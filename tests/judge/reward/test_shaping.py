"""Potentials that are settled, the rewards of modes from them, and what they leave of the exact policy gradient."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.judge.reward.potential_ledger import PotentialLedger, ScoredRollout, Settlement
from embodied_rl.judge.reward.score_table import RolloutScores, advance
from embodied_rl.judge.reward.scoring_writer import MODES
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.schema import RewardNode
from tests.support.enumeration import GAMMA, HORIZON, RANDOM, TRUE, WRONG, Path, error
from tests.support.scored_rollouts import NAN, make_rollout, tell


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
        settled = one_environment([0.2, 0.3], last=0.7, ledger=ledger, **options)
        assert ledger.carried.tolist() == [0.0], options
        assert "lost" not in options or not settled.shaping.any()


@pytest.mark.thorough
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


NODE = RewardNode(name="told", mode="rises", weight=2.0)
DISCOUNT = Discount(1.0)


def paid(rollout: Rollout, scores: RolloutScores, node: RewardNode = NODE, limit_ends: bool = True) -> list[float]:
    MODES[node.mode](node, 1, DISCOUNT, limit_ends).settle(rollout, scores)
    return (rollout.bonus + rollout.shaping)[:, 0].tolist()


def test_each_rise_is_paid_and_no_fall_is_charged() -> None:
    """A loop of the score earns as often as it is run; by a potential it earns nothing."""
    loop = [0.2, 0.6, 0.2, 0.6, 0.2]
    assert paid(make_rollout([0, 1, 2, 3, 4]), tell(loop, 0.2)) == pytest.approx([0.8, 0, 0.8, 0, 0])
    shaped = paid(make_rollout([0, 1, 2, 3, 4]), tell(loop, 0.2), replace(NODE, mode="late"))
    assert shaped == pytest.approx([0.8, -0.8, 0.8, -0.8, 0]) and sum(shaped) == pytest.approx(0)


def test_it_is_a_bonus_beside_the_simulator_s_reward() -> None:
    rollout = make_rollout([0, 1])
    rollout.reward[1, 0, 0] = 1.0
    paid(rollout, tell([0.1, 0.4], 0.5))
    assert not rollout.shaping.any() and not rollout.ignore_env_reward.any()
    assert compose_reward(rollout, DISCOUNT)[:, 0].tolist() == pytest.approx([0.6, 1.2])


def test_a_score_that_is_missing_is_held() -> None:
    assert paid(make_rollout([0, 1, 2]), tell([0.1, NAN, 0.5], 0.5)) == pytest.approx([0, 0.8, 0])


@pytest.mark.parametrize(("limit_ends", "expected"), [(True, 0.0), (False, 1.4)])
def test_an_end_is_paid_by_the_final_observation_of_a_time_limit_alone(limit_ends: bool, expected: float) -> None:
    """The next row is of another episode, and after a termination nobody is asked."""
    rollout = make_rollout([0, 0, 1], cut=(0,), over=(2,))
    found = paid(rollout, tell([0.1, 0.0, 0.2], 0.9, final={0: 0.8}), limit_ends=limit_ends)
    assert found == pytest.approx([expected, 0.4, 0])


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_rollouts_may_be_cut_anywhere(cut: int) -> None:
    """Also across a resume: the score before the cut is remembered."""
    said, found, state = [0.1, 0.5, 0.3, 0.7, 0.6, 0.9, 1.0], [], None
    for first in range(0, 6, cut):
        mode = MODES[NODE.mode](NODE, 1, DISCOUNT, limit_ends=True)
        if state is not None:
            mode.load(state)
        end = min(first + cut, 6)
        rollout = make_rollout(list(range(first, end)))
        mode.settle(rollout, tell(said[first:end], said[end]))
        state, found = mode.state(), found + rollout.bonus[:, 0].tolist()
    assert found == pytest.approx([0.8, 0, 0.8, 0, 0.6, 0.2])


def test_what_is_not_valid_is_not_paid() -> None:
    rollout = make_rollout([0, 1])
    rollout.valid[0] = False
    assert paid(rollout, tell([0.1, 0.5], 0.9)) == pytest.approx([0, 0.8])


CHANGE = st.one_of(st.just(NAN), st.floats(-1, 1))


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
    found = [0.0]
    for change in (0.5, 0.5, -0.5, NAN, 1.0, -1.0):
        found.append(float(advance(np.array(found[-1]), np.array(change))))
    assert found == [0.0, 0.5, 0.75, 0.375, 0.375, 1.0, 0.0]


def settle_path(
    path: Path, arrives: Callable[[int], bool], cuts: tuple[int, ...] = (), weight: float = 1.0
) -> np.ndarray:
    """The shaping of an episode whose scores arrive or not, collected in rollouts that end after `cuts` decisions."""
    taken = len(path.actions)
    ledger, found, first = PotentialLedger(1), [], 0
    for end in (*(cut for cut in cuts if cut < taken), taken):
        rows = range(first, end)
        score = [[weight * WRONG[path.states[t]] if arrives(t) else np.nan] for t in rows]
        last = weight * WRONG[path.states[end]] if arrives(end) else np.nan
        over = [[t == taken - 1] for t in rows]
        size = (len(rows), 1)
        settled = ledger.settle(
            ScoredRollout(
                np.array(score), np.array([last]), np.full(size, np.nan), np.array(rows).reshape(size),
                np.full(size, GAMMA), np.array(over), np.zeros(size, bool), np.ones(size, bool),
            )
        )  # fmt: skip
        found.append(settled.shaping[:, 0])
        first = end
    return np.concatenate(found)


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("cuts", [(), (2, 5), (1, 2, 3, 4, 5, 6, 7)])
def test_settled_potentials_leave_the_gradient_as_it_is(every: int, cuts: tuple[int, ...]) -> None:
    """Scores of each decision, of every third, or of the first alone; in one rollout, or cut in several."""
    assert np.abs(TRUE).max() > 0.02
    assert error(lambda path: settle_path(path, lambda t: t % every == 0, cuts)) <= 1e-12


def test_scores_that_are_lost_at_random_leave_the_gradient_as_it_is() -> None:
    """What arrives depends on the decision alone here, as the load of a server does."""
    arrives = RANDOM.random(HORIZON + 1) < 0.5
    arrives[0] = False  # even the first one, which the constant 0 replaces
    assert error(lambda path: settle_path(path, lambda t: bool(arrives[t]), (3, 4))) <= 1e-12


def test_a_history_may_decide_what_arrives() -> None:
    """A potential may depend on the past, so a scorer that looks away after a step back does no harm either."""

    def shape(path: Path) -> np.ndarray:
        return settle_path(path, lambda t: t == 0 or path.states[t] > path.states[t - 1], (4,))

    assert error(shape) <= 1e-12


def interpolated(path: Path) -> np.ndarray:
    """Between scores of every third observation a line, which looks into the future."""
    known = sorted({*range(0, len(path.states), 3), len(path.states) - 1})
    values = np.interp(range(len(path.states)), known, WRONG[[path.states[t] for t in known]])
    values[-1] = 0
    return GAMMA * values[1:] - values[:-1]


def undiscounted(path: Path) -> np.ndarray:
    values = WRONG[list(path.states)]
    return values[1:] - values[:-1]


def positive(path: Path) -> np.ndarray:
    return np.maximum(undiscounted(path), 0)


def unfinished(path: Path) -> np.ndarray:
    """The potential of the end is not 0."""
    values = WRONG[list(path.states)]
    return GAMMA * values[1:] - values[:-1]


def restless(path: Path) -> np.ndarray:
    """A score that came in the meantime replaces the one that was used."""
    values, newer = WRONG[list(path.states)], WRONG[list(path.states)] ** 2
    following = np.append(values[1:-1], 0)
    return GAMMA * following - newer[:-1]


@pytest.mark.parametrize("shape", [interpolated, undiscounted, positive, unfinished, restless])
def test_other_uses_of_scores_fail_the_same_check(shape: Callable[[Path], np.ndarray]) -> None:
    """So the check can fail, and these uses are no potentials."""
    assert error(shape) > 1e-2
