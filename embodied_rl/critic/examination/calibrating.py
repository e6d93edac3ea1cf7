"""Fits a scorer's calibration to outcomes of judged episodes, and measures it on others of them.

Half of the episodes, drawn by the seed, are fitted to; the other half tells the calibration error before and after.
Progress is fitted to outcomes as in SPA (arXiv:2505.20732), where an episode's contributions add up to its outcome:
what was said of the last frame, against whether the goal held there. Done is fitted to whether the goal held, frame by
frame.

`calibration.json`:

    format, version, identity      of the file, and of the scorer
    progress, done: {slope, offset} or null
    rests_on: {fitted, held_out}   episodes
    reliability: {progress: {cases, before, after, bins_before, bins_after}, done: as progress}
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.critic.evaluation import JudgedSequence
from embodied_rl.critic.measures import Estimate, ReliabilityBin, estimate_calibration, sort_into_bins
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers.calibration import FORMAT, VERSION, PlattMap, find_log_odds
from embodied_rl.reports.chart import Series, draw_line_chart
from embodied_rl.schema import CriticEvalConfig
from embodied_rl.system.atomic_write import write_text

FILE = "calibration.json"
LEAST = 10
"""Cases of each outcome, at least, in both halves."""
STEPS, ENOUGH = 100, 1e-10
"""Of Newton's method: most steps; the gradient that is as good as none."""


@dataclass(frozen=True, eq=False)
class Cases:
    """m scores with what came of them.

    Attributes:
        episode: int64 [m], whose each is.
        said: float64 [m] in 0…1.
        true: bool [m].
    """

    episode: Array
    said: Array
    true: Array

    def select(self, chosen: Array) -> "Cases":
        """Return the cases of some episodes, int64 [n]."""
        inside = np.isin(self.episode, chosen)
        return Cases(self.episode[inside], self.said[inside], self.true[inside])


@dataclass(frozen=True)
class Fit:
    """A map, and the calibration error on held-out cases before and after it.

    Attributes:
        map: from scores to probabilities.
        cases: held out.
        before, after: expected calibration error.
        bins_before, bins_after: of the reliability diagram.
    """

    map: PlattMap
    cases: int
    before: Estimate
    after: Estimate
    bins_before: tuple[ReliabilityBin, ...]
    bins_after: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class Calibrated:
    """What was fitted.

    Attributes:
        identity: of the scorer.
        fits: "progress" and, where the scorer says it, "done".
        fitted, held_out: number of episodes.
    """

    identity: str
    fits: dict[str, Fit]
    fitted: int
    held_out: int


def check_calibration(config: CriticEvalConfig) -> None:
    """Check that scores are not to be calibrated twice.

    Raises:
        UserError: they are.
    """
    if config.calibrate and config.reward.calibration is not None:
        raise UserError("calibrate=true fits the scorer's own scores: leave out reward.calibration.")


def fit_platt(said: Array, true: Array) -> PlattMap:
    """Fit Platt's map by maximum likelihood, by Newton's method.

    Outcomes are taken for (n₁ + 1) / (n₁ + 2) and 1 / (n₀ + 2), as Platt did, so that cases which one threshold
    divides have a fit, too.

    Args:
        said: float [m] in 0…1.
        true: bool [m].

    Raises:
        UserError: there is one outcome alone, or outcomes do not become likelier with the score.
    """
    ones, zeros = int(np.sum(true)), int(np.sum(~true))
    if not ones or not zeros:
        raise UserError("all outcomes are alike, so that nothing can be fitted to them.")
    x = np.stack([find_log_odds(said), np.ones(len(said))], axis=1)
    target = np.where(true, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    weights = np.array([0.0, np.log((ones + 1) / (zeros + 1))])
    for _ in range(STEPS):
        gradient, curvature = _differentiate(weights, x, target)
        if np.abs(gradient).max() < ENOUGH * len(said):
            break
        weights = _search(weights, np.linalg.solve(curvature, gradient), x, target)
    if not weights[0] > 0:
        raise UserError(f"outcomes do not become likelier with the score (slope {weights[0]:.2g}): it tells nothing.")
    return PlattMap(float(weights[0]), float(weights[1]))


def _differentiate(weights: Array, x: Array, target: Array) -> tuple[Array, Array]:
    chance = 1 / (1 + np.exp(-(x @ weights)))
    spread = np.maximum(chance * (1 - chance), 1e-12)
    return x.T @ (chance - target), (x * spread[:, None]).T @ x + 1e-9 * np.eye(2)


def _search(weights: Array, step: Array, x: Array, target: Array) -> Array:
    """Return the weights after a step, halved until the loss falls."""
    size = 1.0
    while size > 1e-6 and _loss(weights - size * step, x, target) > _loss(weights, x, target):
        size /= 2
    return weights - size * step


def _loss(weights: Array, x: Array, target: Array) -> float:
    odds = x @ weights
    return float(np.sum(np.logaddexp(0, odds) - target * odds))


def calibrate(identity: str, judged: Sequence[JudgedSequence], seed: int) -> Calibrated:
    """Fit a scorer's maps to half of the episodes, and measure them on the other half.

    Args:
        identity: of the scorer.
        judged: what it said, of any goals.
        seed: of the division, and of intervals.

    Raises:
        UserError: there are too few successes or failures, or the score tells nothing of outcomes.
    """
    episodes = np.unique([each.episode for each in judged])
    mixed = np.random.default_rng(seed).permutation(episodes)
    first, second = mixed[: (len(mixed) + 1) // 2], mixed[(len(mixed) + 1) // 2 :]
    fits: dict[str, Fit] = {}
    for name, cases in {"progress": gather_ends(judged), "done": gather_frames(judged)}.items():
        if len(cases.said):
            fits[name] = _fit(name, cases.select(first), cases.select(second), seed)
    if "progress" not in fits:
        raise UserError(f"{identity} does not say how far a task is, so that there is nothing to calibrate.")
    return Calibrated(identity, fits, len(first), len(second))


def gather_ends(judged: Sequence[JudgedSequence]) -> Cases:
    """Return what was said of the last frame of each sequence, and whether its goal held there."""
    ends = [(each.episode, each.values[-1], bool(each.goal.done[-1])) for each in judged if not len(each.gains)]
    return _join(ends)


def gather_frames(judged: Sequence[JudgedSequence]) -> Cases:
    """Return each probability of done, and whether the goal held."""
    frames = [(each.episode, each.done[t], bool(each.goal.done[t])) for each in judged for t in range(len(each.done))]
    return _join(frames)


def _join(rows: Sequence[tuple[int, float, bool]]) -> Cases:
    known = [row for row in rows if np.isfinite(row[1])]
    whose, said, true = (np.array(column) for column in zip(*known, strict=True)) if known else ((), (), ())
    return Cases(np.asarray(whose, np.int64), np.asarray(said, np.float64), np.asarray(true, bool))


def _fit(name: str, fitted: Cases, held_out: Cases, seed: int) -> Fit:
    for half in (fitted, held_out):
        if min(int(half.true.sum()), int((~half.true).sum())) < LEAST:
            raise UserError(
                f"calibrate=true: {int(half.true.sum())} of {len(half.true)} cases of {name} in one half of the "
                f"episodes came true; both outcomes take {LEAST} at least. Give more episodes, of both."
            )
    try:
        found = fit_platt(fitted.said, fitted.true)
    except UserError as error:
        raise UserError(f"calibrate=true: {name}: {error}") from None
    true, after = held_out.true.astype(np.float64), found.apply(held_out.said)
    errors = [estimate_calibration(held_out.episode, each, true, seed) for each in (held_out.said, after)]
    bins = [tuple(sort_into_bins(each, true)) for each in (held_out.said, after)]
    return Fit(found, len(true), errors[0], errors[1], bins[0], bins[1])


def write_calibration(path: Path, found: Calibrated) -> None:
    """Write `calibration.json`."""
    maps: dict[str, Any] = {name: asdict(fit.map) for name, fit in found.fits.items()}
    reliability = {
        name: {key: value for key, value in asdict(fit).items() if key != "map"} for name, fit in found.fits.items()
    }
    content = {
        "format": FORMAT, "version": VERSION, "identity": found.identity, "progress": maps.get("progress"),
        "done": maps.get("done"), "rests_on": {"fitted": found.fitted, "held_out": found.held_out},
        "reliability": reliability,
    }  # fmt: skip
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n", "out")


def describe_calibration(found: Calibrated) -> list[str]:
    """Return lines about the calibration error before and after."""
    lines = [f"Calibration, fitted to {found.fitted} episodes and measured on {found.held_out} others:"]
    for name, fit in found.fits.items():
        lines.append(
            f"  {name}: calibration error {_format(fit.before)} before, {_format(fit.after)} after, {fit.cases} cases"
        )
    return lines


def draw_calibration(found: Calibrated) -> str:
    """Draw reliability diagrams before and after."""
    charts: list[str] = []
    for name, fit in found.fits.items():
        curves = [Series("as it should be", [0, 1], [0, 1])]
        for when, bins in (("before", fit.bins_before), ("after", fit.bins_after)):
            known = [each for each in bins if each.said is not None]
            curves.append(Series(when, [each.said or 0.0 for each in known], [each.true for each in known]))
        title = f"Outcomes where {name} was said, held-out episodes"
        charts.append(draw_line_chart(title, curves, x_label="said", percent=True))
    return f'<div class="charts">{"".join(charts)}</div>'


def _format(each: Estimate) -> str:
    interval = "" if each.low is None or each.high is None else f" [{each.low:.3f}, {each.high:.3f}]"
    return "–" if each.value is None else f"{each.value:.3f}{interval}"
