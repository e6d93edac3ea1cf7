"""What shaping may do to the exact policy gradient of a small problem, and what other uses of the same scores do."""

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.judge.reward.potential_ledger import PotentialLedger, ScoredRollout
from tests.support.enumeration import GAMMA, HORIZON, RANDOM, TRUE, WRONG, Path, error


def settle(path: Path, arrives: Callable[[int], bool], cuts: tuple[int, ...] = (), weight: float = 1.0) -> np.ndarray:
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
    assert error(lambda path: settle(path, lambda t: t % every == 0, cuts)) <= 1e-12


def test_scores_that_are_lost_at_random_leave_the_gradient_as_it_is() -> None:
    """What arrives depends on the decision alone here, as the load of a server does."""
    arrives = RANDOM.random(HORIZON + 1) < 0.5
    arrives[0] = False  # even the first one, which the constant 0 replaces
    assert error(lambda path: settle(path, lambda t: bool(arrives[t]), (3, 4))) <= 1e-12


def test_a_history_may_decide_what_arrives() -> None:
    """A potential may depend on the past, so a scorer that looks away after a step back does no harm either."""

    def shape(path: Path) -> np.ndarray:
        return settle(path, lambda t: t == 0 or path.states[t] > path.states[t - 1], (4,))

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
