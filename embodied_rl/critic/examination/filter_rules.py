"""Which demonstrations a scorer's progress speaks against: pure functions of curves.

VLAC (arXiv:2509.15937) leaves out trajectories whose progress is not in order of time (VOC, Spearman's rank
correlation) or often falls (negative deltas); GR-RL (arXiv:2512.01801) chunks over which progress falls. Progress at
the end is ours: whoever stops halfway keeps the order of time, and comes to nothing.

Shapes: t judged frames of an episode, m rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from embodied_rl.critic.measures import LEAST_FRAMES, correlate_ranks
from embodied_rl.interfaces.sim import Array
from embodied_rl.schema import FilterNode

LOSS = 0.01
"""From which fall on a step counts as a loss: VLAC's deltas are whole percents."""
DIGITS = 4
"""Of figures: a threshold of 0.2 means 0.2, whatever the last bits say."""


@dataclass(frozen=True, eq=False)
class ProgressCurve:
    """What a scorer said of an episode; NaN where it said nothing.

    Attributes:
        steps: int64 [t], control steps of the judged frames, rising.
        progress: float64 [t] in 0…1.
        gains: float64 [t - 1] in -1…1, from frame to frame, of a scorer that was asked about pairs; else empty.
    """

    steps: Array
    progress: Array
    gains: Array


@dataclass(frozen=True)
class FilterVerdict:
    """What speaks against an episode.

    Attributes:
        figures: rule → what was measured; empty where fewer than three frames have a score, so that nothing was.
        faults: names of the rules that leave the whole episode out.
    """

    figures: Mapping[str, float]
    faults: tuple[str, ...]


def judge_curve(curve: ProgressCurve, rules: FilterNode, chunk: int, whole: bool) -> FilterVerdict:
    """Compare a curve with the rules.

    Args:
        curve: of an episode.
        rules: thresholds.
        chunk: control steps within which a fall counts.
        whole: whether a fall leaves out the whole episode, and not its rows alone.
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
    """Measure what the rules look at; nothing of a curve with fewer than three known frames."""
    known = np.isfinite(curve.progress)
    progress, steps = curve.progress[known], curve.steps[known]
    if len(progress) < LEAST_FRAMES:
        return {}
    gains = curve.gains[np.isfinite(curve.gains)] if len(curve.gains) else np.diff(progress)
    order = correlate_ranks(progress, steps) if np.ptp(progress) > 0 else 0.0  # constant scores put nothing in order
    figures = {
        "voc": order,
        "losses": float(np.mean(gains <= -LOSS)) if len(gains) else 0.0,
        "end": float(progress[-1]),
        "drop": float(measure_falls(curve, steps, chunk).max()),
    }
    return {name: round(value, DIGITS) for name, value in figures.items()}


def measure_falls(curve: ProgressCurve, steps: Array, chunk: int) -> Array:
    """Measure by how much progress falls within a chunk from each step on, float64 [m]; less than 0 where it rises.

    Between judged frames progress is a line, past the last one it stays. Nothing falls where fewer than two frames are
    known.

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
