"""Measures of a scorer, with intervals, from the sequences of an evaluation.

An episode that succeeded is measured up to the first frame of its success.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.measures import (
    Estimate,
    ReliabilityBin,
    Tally,
    add_up_gains,
    estimate_calibration,
    estimate_precision,
    estimate_share,
    estimate_tau,
    sort_into_bins,
)
from embodied_rl.critic.sequence_scoring import JudgedSequence, count_reasons
from embodied_rl.interfaces.sim import Array

CLEAR = 0.5
"""Another goal is clearly a wrong one where, at the end, it has come at most so far."""

MEANINGS: Mapping[str, str] = {
    "voc": "VOC: order of time on successes",
    "voc_reversed": "VOC of the reversed pairs",
    "negative_share": "pairs on successes called losses",
    "swap_error": "mean |pair + swapped pair|",
    "failures": "order of the truth on failures",
    "other_object": "order of the truth, another object",
    "other_place": "order of the truth, another place",
    "other_task": "order of the truth, another task",
    "gap_object": "gap at the end to another object",
    "gap_place": "gap at the end to another place",
    "gap_task": "gap at the end to another task",
    "true_gap_object": "the same gap of the truth, object",
    "true_gap_place": "the same gap of the truth, place",
    "true_gap_task": "the same gap of the truth, task",
    "wrong_object": "progress at the end, wrong object",
    "wrong_object_share": "share of these above one half",
    "done_recall": "done: successes that it says",
    "done_precision": "done: of what it says, successes",
    "done_false": "done: failures called successes",
    "done_early": "done: said before the goal holds",
    "done_mismatch": "done: said of a wrong instruction",
    "done_average_precision": "done: average precision",
    "progress_error": "mean |progress - truth|",
    "progress_calibration": "progress: calibration error (ECE)",
    "done_calibration": "done: calibration error (ECE)",
    "tau": "order of episodes, Kendall's τ-a",
    "tau_reachable": "the most that τ-a can be here",
    "valid": "requests with a valid score",
}
"""Measure → text of the report, in the report's order."""
FAMILY_MEASURES = ("voc", "failures", "gap_object", "gap_task", "done_recall", "done_false")
"""Measures reported for each family."""


@dataclass(frozen=True)
class Assessment:
    """Evaluation result of a scorer.

    Attributes:
        measures: by their names in `MEANINGS`; those without a value could not be measured on these episodes.
        families: family → measures.
        progress_bins: of progress against the truth; done_bins: of the probability of done against whether it holds.
        reasons: of all requests.
        done_from: whether "done" is the scorer's own output, or its thresholded "progress".
    """

    measures: Mapping[str, Estimate]
    families: Mapping[str, Mapping[str, Estimate]]
    progress_bins: Sequence[ReliabilityBin]
    done_bins: Sequence[ReliabilityBin]
    reasons: Mapping[str, int]
    done_from: str


def assess_judge(
    episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence], threshold: float, seed: int
) -> Assessment:
    """Measure a scorer."""
    says_done = any(np.isfinite(each.done).any() for each in judged)
    shown = judged if says_done else [replace(each, done=each.values) for each in judged]
    families: dict[str, dict[str, Estimate]] = {}
    for family in sorted({episode.family for episode in episodes}):
        own = [each for each in shown if episodes[each.episode].family == family]
        found = _measure(episodes, own, threshold, seed)
        families[family] = {name: found[name] for name in FAMILY_MEASURES}
    known = [each for each in shown if each.goal.true]
    _, progress, progress_truth = pool_frames((each.episode, each.values, each.goal.progress) for each in known)
    _, done, done_truth = pool_frames((each.episode, each.done, each.goal.done) for each in known)
    measures = _measure(episodes, shown, threshold, seed)
    if not says_done:  # progress is no probability
        measures["done_calibration"] = Estimate(None)
    return Assessment(
        measures,
        families,
        sort_into_bins(progress, progress_truth) if len(progress) else (),
        sort_into_bins(done, done_truth) if says_done and len(done) else (),
        count_reasons(judged),
        "done" if says_done else "progress",
    )


def find_success(episode: JudgedEpisode) -> int | None:
    """Return the first frame in which the robot's goal holds; None for a failure."""
    done = episode.goals[0].done
    if done.any():
        return int(np.argmax(done))
    return len(episode.state) - 1 if episode.success else None


def _measure(
    episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence], threshold: float, seed: int
) -> dict[str, Estimate]:
    """Return every measure of these sequences, in the order of `MEANINGS`."""
    own = {each.episode: each for each in judged if each.goal.relation == "own"}
    others = [each for each in judged if each.goal.relation != "own"]
    found = _measure_order(episodes, own, others, seed)
    found |= _measure_gaps(episodes, own, others, seed)
    found |= _measure_done(episodes, own, others, threshold, seed)
    found |= _measure_truth(episodes, own, judged, seed)
    reasons = [reason for each in judged for reason in each.reasons]
    found["valid"] = estimate_share(reasons.count("ok"), len(reasons))
    return {name: found[name] for name in MEANINGS}


def _measure_order(
    episodes: Sequence[JudgedEpisode], own: Mapping[int, JudgedSequence], others: Sequence[JudgedSequence], seed: int
) -> dict[str, Estimate]:
    """Compare the order of frames with that of time or truth, and pairs with the same pairs in reverse."""
    names = ("voc", "failures", "voc_reversed", "swap_error", "other_object", "other_place", "other_task")
    tallies = {name: Tally() for name in names}
    gains: list[float] = []
    for number, each in own.items():
        success = find_success(episodes[number])
        if success is None:
            if each.goal.true:
                tallies["failures"].add_correlation(number, each.values, each.goal.progress)
            continue
        tallies["voc"].add_correlation(number, each.values[: success + 1], np.arange(success + 1))
        if len(each.gains):
            both = each.gains + each.back
            swap = float(np.nanmean(np.abs(both))) if np.isfinite(both).any() else math.nan
            tallies["swap_error"].add(number, swap)
            back = add_up_gains(each.back[:success][::-1])
            tallies["voc_reversed"].add_correlation(number, back, np.arange(success + 1))
            gains += [gain for gain in each.gains[:success].tolist() if math.isfinite(gain)]
    for each in others:
        if each.goal.true:
            tallies[f"other_{each.goal.relation}"].add_correlation(each.episode, each.values, each.goal.progress)
    losses = estimate_share(sum(gain < 0 for gain in gains), len(gains))
    return {name: tally.estimate(seed) for name, tally in tallies.items()} | {"negative_share": losses}


def _measure_gaps(
    episodes: Sequence[JudgedEpisode], own: Mapping[int, JudgedSequence], others: Sequence[JudgedSequence], seed: int
) -> dict[str, Estimate]:
    """Compare the own goal with clearly wrong ones where the own one holds for the first time."""
    gaps = {relation: (Tally(), Tally()) for relation in ("object", "place", "task")}
    wrong = Tally()
    for each in others:
        end = find_success(episodes[each.episode])
        if end is None or each.goal.progress[end] > CLEAR or each.goal.done[end]:
            continue
        predicted, true = gaps[each.goal.relation]
        predicted.add(each.episode, float(own[each.episode].values[end] - each.values[end]))
        if each.goal.true:
            true.add(each.episode, float(own[each.episode].goal.progress[end] - each.goal.progress[end]))
        if each.goal.relation == "object":
            wrong.add(each.episode, float(each.values[end]))
    found = {f"gap_{relation}": predicted.estimate(seed) for relation, (predicted, _) in gaps.items()}
    found |= {f"true_gap_{relation}": true.estimate(seed) for relation, (_, true) in gaps.items()}
    high = sum(value > CLEAR for value in wrong.values)
    return found | {"wrong_object": wrong.estimate(seed), "wrong_object_share": estimate_share(high, len(wrong.values))}


def _measure_done(
    episodes: Sequence[JudgedEpisode],
    own: Mapping[int, JudgedSequence],
    others: Sequence[JudgedSequence],
    threshold: float,
    seed: int,
) -> dict[str, Estimate]:
    """Judge "done" by episodes: a success from its first frame on, a failure in any frame."""
    best: list[tuple[float, bool]] = []
    early: list[bool] = []
    for number, each in own.items():
        success = find_success(episodes[number])
        if (highest := _find_highest(each.done[success or 0 :])) is not None:
            best.append((highest, success is not None))
        if success and (before := _find_highest(each.done[:success])) is not None:
            early.append(before >= threshold)
    highest_wrong = [_find_highest(each.done) for each in others if not each.goal.done.any()]
    wrong = [score for score in highest_wrong if score is not None]
    scores, truth = np.array([score for score, _ in best]), np.array([true for _, true in best], bool)
    positive = scores >= threshold
    right, false = int((positive & truth).sum()), int((positive & ~truth).sum())
    return {
        "done_recall": estimate_share(right, int(truth.sum())),
        "done_precision": estimate_share(right, right + false),
        "done_false": estimate_share(false, int((~truth).sum())),
        "done_early": estimate_share(sum(early), len(early)),
        "done_mismatch": estimate_share(sum(score >= threshold for score in wrong), len(wrong)),
        "done_average_precision": estimate_precision(scores, truth, seed),
    }


def _measure_truth(
    episodes: Sequence[JudgedEpisode], own: Mapping[int, JudgedSequence], judged: Sequence[JudgedSequence], seed: int
) -> dict[str, Estimate]:
    """Compare with the truth: frame by frame, and episodes by how they ended."""
    error = Tally()
    for each in judged:
        if each.goal.true and (valid := np.isfinite(each.values)).any():
            error.add(each.episode, float(np.mean(np.abs(each.values - each.goal.progress)[valid])))
    ends: list[tuple[float, float]] = []
    for number, each in own.items():
        quality = float(each.goal.progress[-1]) if each.goal.true else float(episodes[number].success)
        ends.append((float(each.values[-1]), quality))
    ended = np.array([end for end in ends if math.isfinite(end[0])]).reshape(-1, 2)
    known = [each for each in judged if each.goal.true]
    progress = pool_frames((each.episode, each.values, each.goal.progress) for each in known)
    done = pool_frames((each.episode, each.done, each.goal.done) for each in known)
    return {
        "progress_error": error.estimate(seed),
        "progress_calibration": estimate_calibration(*progress, seed),
        "done_calibration": estimate_calibration(*done, seed),
        "tau": estimate_tau(ended[:, 0], ended[:, 1], seed),
        "tau_reachable": Estimate(estimate_tau(ended[:, 1], ended[:, 1], seed).value, count=len(ended)),
    }


def _find_highest(values: Array) -> float | None:
    return float(np.nanmax(values)) if np.isfinite(values).any() else None


def pool_frames(frames: Iterable[tuple[int, Array, Array]]) -> tuple[Array, Array, Array]:
    """Return episode, score and truth of all frames with a score, [m] each, from episodes with their frames."""
    parts = [(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))]
    for episode, score, truth in frames:
        known = np.isfinite(score)
        parts.append((np.full(known.sum(), episode), score[known], truth[known]))
    episodes, scores, truths = (np.concatenate(column) for column in zip(*parts, strict=True))
    return episodes, scores, truths
