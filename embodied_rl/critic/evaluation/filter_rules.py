"""Filter rules for demonstrations: pure functions of progress curves.

VLAC (arXiv:2509.15937) drops trajectories with a low rank correlation of progress and time (VOC, Spearman) or many
negative changes; GR-RL (arXiv:2512.01801) drops chunks over which progress falls. The progress at the end is our
addition: a demonstration that stops halfway has a high VOC.

Shapes: t judged frames of an episode, m rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from embodied_rl.critic.measures import LEAST_FRAMES, correlate_ranks
from embodied_rl.interfaces.sim import Array
from embodied_rl.schema import FilterNode

LOSS = 0.01
"""Smallest fall of progress that counts as a loss: VLAC's changes are whole percents."""
DIGITS = 4
"""Decimal places of figures, so that rounding errors do not decide at a threshold."""


@dataclass(frozen=True, eq=False)
class ProgressCurve:
    """Progress of an episode by a scorer; NaN where a score is missing.

    Attributes:
        steps: int64 [t], control steps of the scored frames, increasing.
        progress: float64 [t] in 0…1.
        gains: float64 [t - 1] in -1…1, changes from frame to frame by a pairwise scorer; else empty.
    """

    steps: Array
    progress: Array
    gains: Array


@dataclass(frozen=True)
class FilterVerdict:
    """Measured figures and violated rules of an episode.

    Attributes:
        figures: rule → measured value; empty if fewer than three frames have a score.
        faults: names of the rules that drop the whole episode.
    """

    figures: Mapping[str, float]
    faults: tuple[str, ...]


def judge_curve(curve: ProgressCurve, rules: FilterNode, chunk: int, whole: bool) -> FilterVerdict:
    """Compare a curve with the rules.

    Args:
        curve: of an episode.
        rules: thresholds.
        chunk: control steps within which a fall counts.
        whole: whether a fall drops the whole episode instead of its rows.
    """
    figures = measure_curve(curve, chunk)
    wrong = {
        "voc": lambda value, least: value < least,
        "losses": lambda value, most: value > most,
        "end": lambda value, least: value < least,
        "drop": lambda value, most: whole and value > most,
    }
    faults = [name for name, threshold in rules.rules.items() if figures and wrong[name](figures[name], threshold)]
    return FilterVerdict(figures, tuple(faults))


def measure_curve(curve: ProgressCurve, chunk: int) -> dict[str, float]:
    """Return the figure of each rule; empty for fewer than three known frames."""
    known = np.isfinite(curve.progress)
    progress, steps = curve.progress[known], curve.steps[known]
    if len(progress) < LEAST_FRAMES:
        return {}
    gains = curve.gains[np.isfinite(curve.gains)] if len(curve.gains) else np.diff(progress)
    order = correlate_ranks(progress, steps) if np.ptp(progress) > 0 else 0.0  # constant scores have no order
    figures = {
        "voc": order,
        "losses": float(np.mean(gains <= -LOSS)) if len(gains) else 0.0,
        "end": float(progress[-1]),
        "drop": float(measure_falls(curve, steps, chunk).max()),
    }
    return {name: round(value, DIGITS) for name, value in figures.items()}


def measure_falls(curve: ProgressCurve, steps: Array, chunk: int) -> Array:
    """Return the fall of progress within a chunk from each step on, float64 [m]; negative where it rises.

    Progress is interpolated linearly between scored frames and constant after the last one. Zero if fewer than two
    frames are known.

    Args:
        curve: of the episode.
        steps: int64 [m], control steps.
        chunk: control steps of a chunk.
    """
    known = np.isfinite(curve.progress)
    if known.sum() < 2:
        return np.zeros(len(steps))
    now, then = (np.interp(at, curve.steps[known], curve.progress[known]) for at in (steps, steps + chunk))
    return now - then
