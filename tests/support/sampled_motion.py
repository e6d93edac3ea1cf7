"""Optima of sampled motions under limits, by linear programming, and by the closed forms of continuous time."""

import numpy as np
import scipy  # which imports its parts when they are used


def sum_speeds(speed: float, acceleration: float, ticks: int, limits: tuple[float, float, float]) -> float | None:
    """Return the least way, in sums of speeds, in which a motion can come to rest without reversing; None: it cannot.

    Args:
        limits: the largest speed, acceleration and jerk, per tick.
    """
    found = _solve(np.ones(ticks), speed, acceleration, ticks, (0.0, limits[0]), limits[1], limits[2])
    return None if found is None else float(found.sum())


def find_farthest(ticks: int, limits: tuple[float, float, float]) -> float:
    """Return the distance of a motion from rest to rest in a number of ticks."""
    found = _solve(-np.ones(ticks), 0.0, 0.0, ticks, (0.0, limits[0]), limits[1], limits[2])
    assert found is not None, "to stay at rest is always possible"
    return float(found.sum())


def time_stop(speed: float, acceleration: float, jerk: float) -> float:
    """Return how long a stop from a constant speed takes in continuous time."""
    return speed / acceleration + acceleration / jerk if speed * jerk >= acceleration**2 else 2 * (speed / jerk) ** 0.5


def time_move(distance: float, speed: float, acceleration: float, jerk: float) -> float:
    """Return how long a motion from rest to rest takes in continuous time: up, perhaps at top speed, and down."""

    def rise(top: float) -> float:
        return top * time_stop(top, acceleration, jerk)

    if distance >= rise(speed):
        return distance / speed + time_stop(speed, acceleration, jerk)
    low, high = 0.0, speed
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rise(middle) < distance else (low, middle)
    return 2 * time_stop(low, acceleration, jerk)


def _solve(
    cost: np.ndarray,
    speed: float,
    before: float,
    ticks: int,
    speeds: tuple[float, float],
    acceleration: float,
    jerk: float,
) -> np.ndarray | None:
    """Return the speeds, which end with two zeros, that cost least."""
    first = np.eye(ticks) - np.eye(ticks, k=-1)
    second = first @ first
    changes, bends = np.zeros(ticks), np.zeros(ticks)
    changes[0] = speed  # the first acceleration is v₀ - speed, and the first jerk is that minus `before`
    bends[0], bends[1] = speed + before, -speed
    rows = scipy.sparse.csr_array(np.vstack([first, -first, second, -second]))
    ends = [acceleration + changes, acceleration - changes, jerk + bends, jerk - bends]
    bounds = [speeds] * (ticks - 2) + [(0.0, 0.0)] * 2
    solved = scipy.optimize.linprog(cost, A_ub=rows, b_ub=np.concatenate(ends), bounds=bounds, method="highs")
    return solved.x if solved.status == 0 else None
