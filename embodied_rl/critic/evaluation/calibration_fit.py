"""Platt calibration of a scorer by the outcomes of episodes.

One random half of the episodes is fitted; the other half measures the calibration error before and after. Progress is
fitted as in SPA (arXiv:2505.20732): the score of the last frame against whether the goal held there. "Done" is fitted
to whether the goal held in each frame.

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

from embodied_rl.critic.measures import Estimate, ReliabilityBin, estimate_calibration, sort_into_bins
from embodied_rl.critic.sequence_scoring import JudgedSequence
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers.calibration import FORMAT, VERSION, PlattMap, find_log_odds
from embodied_rl.reports.chart import Series, draw_line_chart
from embodied_rl.schema import CriticEvalConfig
from embodied_rl.system.atomic_write import write_text

FILE = "calibration.json"
LEAST = 10
"""Smallest number of samples of each outcome in each half."""
STEPS, ENOUGH = 100, 1e-10
"""Newton's method: maximum number of steps; gradient per sample at which it stops."""


@dataclass(frozen=True, eq=False)
class CalibrationSet:
    """m scores with their outcomes.

    Attributes:
        episode: int64 [m], episode of each score.
        score: float64 [m] in 0…1.
        outcome: bool [m].
    """

    episode: Array
    score: Array
    outcome: Array

    def select(self, chosen: Array) -> "CalibrationSet":
        """Return the cases of some episodes, int64 [n]."""
        inside = np.isin(self.episode, chosen)
        return CalibrationSet(self.episode[inside], self.score[inside], self.outcome[inside])


@dataclass(frozen=True)
class CalibrationFit:
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
class CalibrationResult:
    """Result of a calibration.

    Attributes:
        identity: of the scorer.
        fits: "progress" and, if the scorer returns it, "done".
        fitted, held_out: number of episodes.
    """

    identity: str
    fits: dict[str, CalibrationFit]
    fitted: int
    held_out: int


def check_calibration(config: CriticEvalConfig) -> None:
    """Check that scores are not calibrated twice.

    Raises:
        UserError: they would be.
    """
    if config.calibrate and config.reward.calibration is not None:
        raise UserError(
            "calibrate=true fits the scorer's own scores: leave out reward.calibration.", code="keys-contradict"
        )


def fit_platt(score: Array, outcome: Array) -> PlattMap:
    """Fit Platt's map by maximum likelihood, by Newton's method.

    Targets are (n₁ + 1) / (n₁ + 2) and 1 / (n₀ + 2), as in Platt's paper, so that separable samples have a fit, too.

    Args:
        score: float [m] in 0…1.
        outcome: bool [m].

    Raises:
        UserError: all outcomes are equal, or the score does not increase with the outcome.
    """
    ones, zeros = int(np.sum(outcome)), int(np.sum(~outcome))
    if not ones or not zeros:
        raise UserError("all outcomes are equal, so no calibration can be fitted.", code="calibration-outcomes-alike")
    x = np.stack([find_log_odds(score), np.ones(len(score))], axis=1)
    target = np.where(outcome, (ones + 1) / (ones + 2), 1 / (zeros + 2))
    weights = np.array([0.0, np.log((ones + 1) / (zeros + 1))])
    for _ in range(STEPS):
        gradient, curvature = _differentiate(weights, x, target)
        if np.abs(gradient).max() < ENOUGH * len(score):
            break
        weights = _search(weights, np.linalg.solve(curvature, gradient), x, target)
    if not weights[0] > 0:
        raise UserError(
            f"score and outcome are not positively correlated (slope {weights[0]:.2g}); calibration is useless.",
            code="calibration-not-informative",
        )
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


def calibrate(identity: str, judged: Sequence[JudgedSequence], seed: int) -> CalibrationResult:
    """Fit a scorer's maps to half of the episodes, and measure them on the other half.

    Args:
        identity: of the scorer.
        judged: its scores, for any goals.
        seed: of the split and of the intervals.

    Raises:
        UserError: there are too few successes or failures, or scores and outcomes are not correlated.
    """
    episodes = np.unique([each.episode for each in judged])
    mixed = np.random.default_rng(seed).permutation(episodes)
    first, second = mixed[: (len(mixed) + 1) // 2], mixed[(len(mixed) + 1) // 2 :]
    fits: dict[str, CalibrationFit] = {}
    for name, cases in {"progress": gather_ends(judged), "done": gather_frames(judged)}.items():
        if len(cases.score):
            fits[name] = _fit(name, cases.select(first), cases.select(second), seed)
    if "progress" not in fits:
        raise UserError(
            f"{identity} returns no progress, so there is nothing to calibrate.",
            code="scorer-without-progress",
        )
    return CalibrationResult(identity, fits, len(first), len(second))


def gather_ends(judged: Sequence[JudgedSequence]) -> CalibrationSet:
    """Return the score of the last frame of each sequence, and whether its goal held there."""
    ends = [(each.episode, each.values[-1], bool(each.goal.done[-1])) for each in judged if not len(each.gains)]
    return _join(ends)


def gather_frames(judged: Sequence[JudgedSequence]) -> CalibrationSet:
    """Return each probability of done, and whether the goal held."""
    frames = [(each.episode, each.done[t], bool(each.goal.done[t])) for each in judged for t in range(len(each.done))]
    return _join(frames)


def _join(rows: Sequence[tuple[int, float, bool]]) -> CalibrationSet:
    known = [row for row in rows if np.isfinite(row[1])]
    whose, said, true = (np.array(column) for column in zip(*known, strict=True)) if known else ((), (), ())
    return CalibrationSet(np.asarray(whose, np.int64), np.asarray(said, np.float64), np.asarray(true, bool))


def _fit(name: str, fitted: CalibrationSet, held_out: CalibrationSet, seed: int) -> CalibrationFit:
    for half in (fitted, held_out):
        if min(int(half.outcome.sum()), int((~half.outcome).sum())) < LEAST:
            raise UserError(
                f"calibrate=true: {int(half.outcome.sum())} of {len(half.outcome)} cases of {name} in one half of the "
                f"episodes came true; both outcomes take {LEAST} at least. Give more episodes, of both.",
                code="calibration-too-few-outcomes",
            )
    try:
        found = fit_platt(fitted.score, fitted.outcome)
    except UserError as error:
        raise UserError(f"calibrate=true: {name}: {error}", code=error.code) from None
    true, after = held_out.outcome.astype(np.float64), found.apply(held_out.score)
    errors = [estimate_calibration(held_out.episode, each, true, seed) for each in (held_out.score, after)]
    bins = [tuple(sort_into_bins(each, true)) for each in (held_out.score, after)]
    return CalibrationFit(found, len(true), errors[0], errors[1], bins[0], bins[1])


def write_calibration(path: Path, found: CalibrationResult) -> None:
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


def describe_calibration(found: CalibrationResult) -> list[str]:
    """Return lines about the calibration error before and after."""
    lines = [f"Calibration, fitted to {found.fitted} episodes and measured on {found.held_out} others:"]
    for name, fit in found.fits.items():
        lines.append(
            f"  {name}: calibration error {_format(fit.before)} before, {_format(fit.after)} after, {fit.cases} cases"
        )
    return lines


def draw_calibration(found: CalibrationResult) -> str:
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
