"""Active time: counts only control steps in which the robot moves, so that pauses do not count as progress.

Shapes: T control steps of an episode, S state dimensions.
"""

import numpy as np

from embodied_rl.interfaces.sim import Array

SLOW = 0.05
"""A robot stands still where no entry of its state changes by this share of what the entry's quick changes are."""
QUICK = 0.95
"""Quantile of an entry's changes that are quick."""
SHORTEST = 3
"""Control steps of a pause, at least; less is a turn."""


def measure_active_time(state: Array) -> Array:
    """Return how much of the movement has been made, float64 [T] from 0 to 1, rising where the robot moves.

    Where nothing moves at all, no state is known, or noise hides every pause, time itself passes.

    Args:
        state: float32 [T, S], proprioception of every control step.
    """
    clock = np.linspace(0, 1, len(state))
    if len(state) < 2 or not state.shape[1]:
        return clock
    moving = ~find_pauses(state)
    return np.concatenate([[0.0], np.cumsum(moving) / moving.sum()]) if moving.any() else clock


def find_pauses(state: Array) -> Array:
    """Return during which steps, from one row to the next, the robot pauses: bool [T - 1]."""
    change = np.abs(np.diff(np.asarray(state, np.float64), axis=0))
    quick = np.quantile(change, QUICK, axis=0)
    quick = np.where(quick > 0, quick, change.max(axis=0))  # an entry that seldom changes, such as a gripper's
    still: Array = np.all(change <= SLOW * quick, axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], still, [False]]).astype(np.int8)))
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        still[start:stop] = stop - start >= SHORTEST
    return still
