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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.critic.assessment import pool_frames
from embodied_rl.critic.measures import Estimate, ReliabilityBin, estimate_calibration, sort_into_bins
from embodied_rl.critic.sequence_scoring import JudgedSequence
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers.calibration import FORMAT, VERSION, PlattMap, find_log_odds
from embodied_rl.reports.chart import Series, draw_line_chart, join_charts
from embodied_rl.schema import CriticEvalConfig
from embodied_rl.system.atomic_write import write_text

FILE = "calibration.json"
LEAST = 10
"""Smallest number of samples of each outcome in each half."""
STEPS, ENOUGH = 100, 1e-10
"""Newton's method: maximum number of steps; gradient per sample at which it stops."""


@dataclass(frozen=True)
class CalibrationFit:
    """A map, and the calibration error on held-out cases before and after it."""

    map: PlattMap
    cases: int
    before: Estimate
    after: Estimate
    bins_before: tuple[ReliabilityBin, ...]
    bins_after: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class CalibrationResult:
    """Result of a calibration."""

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
    """Fit Platt's map to scores, float [m] in 0…1, and outcomes, bool [m], by maximum likelihood with Newton's method.

    Targets are (n₁ + 1) / (n₁ + 2) and 1 / (n₀ + 2), as in Platt's paper, so that separable samples have a fit, too.

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
        chance = 1 / (1 + np.exp(-(x @ weights)))
        spread = np.maximum(chance * (1 - chance), 1e-12)
        gradient = x.T @ (chance - target)
        if np.abs(gradient).max() < ENOUGH * len(score):
            break
        step, size = np.linalg.solve((x * spread[:, None]).T @ x + 1e-9 * np.eye(2), gradient), 1.0
        while size > 1e-6 and _loss(weights - size * step, x, target) > _loss(weights, x, target):
            size /= 2
        weights = weights - size * step
    if not weights[0] > 0:
        raise UserError(
            f"score and outcome are not positively correlated (slope {weights[0]:.2g}); calibration is useless.",
            code="calibration-not-informative",
        )
    return PlattMap(float(weights[0]), float(weights[1]))


def _loss(weights: Array, x: Array, target: Array) -> float:
    odds = x @ weights
    return float(np.sum(np.logaddexp(0, odds) - target * odds))


def calibrate(identity: str, judged: Sequence[JudgedSequence], seed: int) -> CalibrationResult:
    """Fit a scorer's maps to half of the episodes, and measure them on the other half.

    Raises:
        UserError: there are too few successes or failures, or scores and outcomes are not correlated.
    """
    episodes = np.unique([each.episode for each in judged])
    mixed = np.random.default_rng(seed).permutation(episodes)
    first, second = mixed[: (len(mixed) + 1) // 2], mixed[(len(mixed) + 1) // 2 :]
    fits: dict[str, CalibrationFit] = {}
    ends = [(each.episode, each.values[-1:], each.goal.done[-1:]) for each in judged if not len(each.gains)]
    frames = [(each.episode, each.done, each.goal.done) for each in judged]
    for name, rows in (("progress", ends), ("done", frames)):
        cases = pool_frames(rows)
        if not len(cases[1]):
            continue
        halves = [tuple(column[np.isin(cases[0], half)] for column in cases) for half in (first, second)]
        for *_, outcome in halves:
            if min(int(outcome.sum()), int((~outcome).sum())) < LEAST:
                raise UserError(
                    f"calibrate=true: {int(outcome.sum())} of {len(outcome)} cases of {name} in one half of the "
                    f"episodes came true; both outcomes take {LEAST} at least. Give more episodes, of both.",
                    code="calibration-too-few-outcomes",
                )
        (_, score, outcome), (episode, before, truth) = halves
        try:
            platt = fit_platt(score, outcome)
        except UserError as error:
            raise UserError(f"calibrate=true: {name}: {error}", code=error.code) from None
        truth, after = truth.astype(np.float64), platt.apply(before)
        errors = [estimate_calibration(episode, each, truth, seed) for each in (before, after)]
        bins = [tuple(sort_into_bins(each, truth)) for each in (before, after)]
        fits[name] = CalibrationFit(platt, len(truth), errors[0], errors[1], bins[0], bins[1])
    if "progress" not in fits:
        raise UserError(
            f"{identity} returns no progress, so there is nothing to calibrate.", code="scorer-without-progress"
        )
    return CalibrationResult(identity, fits, len(first), len(second))


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

    def format_error(each: Estimate) -> str:
        interval = "" if each.low is None or each.high is None else f" [{each.low:.3f}, {each.high:.3f}]"
        return "–" if each.value is None else f"{each.value:.3f}{interval}"

    lines = [f"Calibration, fitted to {found.fitted} episodes and measured on {found.held_out} others:"]
    for name, fit in found.fits.items():
        lines.append(
            f"  {name}: calibration error {format_error(fit.before)} before, {format_error(fit.after)} after, "
            f"{fit.cases} cases"
        )
    return lines


def draw_calibration(found: CalibrationResult) -> str:
    """Draw reliability diagrams before and after."""
    charts: list[str] = []
    for name, fit in found.fits.items():
        diagram = {"before": fit.bins_before, "after": fit.bins_after}
        charts.append(draw_reliability(f"Outcomes where {name} was said, held-out episodes", diagram))
    return join_charts(charts)


def draw_reliability(title: str, diagrams: Mapping[str, Sequence[ReliabilityBin]]) -> str:
    """Draw a reliability diagram with a curve of each list of bins."""
    curves = [Series("as it should be", [0, 1], [0, 1])]
    for name, bins in diagrams.items():
        known = [each for each in bins if each.said is not None]
        curves.append(Series(name, [each.said or 0.0 for each in known], [each.true for each in known]))
    return draw_line_chart(title, curves, x_label="said", percent=True)
