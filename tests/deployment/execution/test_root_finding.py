"""Root of an increasing function, also with noise."""

from collections.abc import Callable

import pytest

from embodied_rl.deployment.execution.limiter import ROUNDS, find_root


@pytest.mark.parametrize(
    ("function", "root"),
    [
        (lambda x: x - 0.3, 0.3),
        (lambda x: (x - 0.3) * (1 if x < 0.3 else 1e9), 0.3),
        (lambda x: x**3 - 1e-9, 1e-3),
        (lambda x: x + 5, -1.0),
        (lambda x: x - 5, 2.0),
        (lambda x: x - 2.0, 2.0),
    ],
)
@pytest.mark.parametrize("guess", [-1.0, -0.4, 0.3, 1.7, 2.0])
def test_the_root_or_the_nearer_end_is_found(function: Callable[[float], float], root: float, guess: float):
    calls: list[float] = []
    found = find_root(lambda x: calls.append(x) or function(x), -1.0, 2.0, guess, 1e-14)
    assert found == pytest.approx(root, abs=1e-4 if root == 1e-3 else 1e-12)
    assert len(calls) <= ROUNDS + 2


def test_the_root_of_a_straight_line_is_found_at_once():
    calls: list[float] = []
    assert find_root(lambda x: calls.append(x) or 2 * x - 0.6, -1.0, 2.0, 1.7, 1e-14) == pytest.approx(0.3, abs=1e-14)
    assert len(calls) <= 4


def test_a_root_next_to_an_end_is_not_taken_for_the_other_end():
    """False position alone rounds to the end here, where the value is noise above 0."""
    assert find_root(lambda x: x - 1.0 if x < 1.0 else 1e-17, 0.0, 1.0, 1.0, 1e-18) == pytest.approx(1.0, abs=1e-12)
