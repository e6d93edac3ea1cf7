"""What a scorer's answers are worth: every measure, with its interval, from the sequences of an evaluation.

An episode that succeeded is measured up to the first frame of its success: what comes later is another matter.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
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
"""The measures in the order of a report, and what they are in words."""
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
    """Measure what a scorer's answers are worth.

    Args:
        episodes: what was judged.
        judged: the answers.
        threshold: from which probability on "done" counts as said.
        seed: of the resamples.
    """
    says_done = any(np.isfinite(each.done).any() for each in judged)
    shown = judged if says_done else [_take_progress_as_done(each) for each in judged]
    kept = lambda family: [each for each in shown if episodes[each.episode].family == family]  # noqa: E731
    families = {name: _measure(episodes, kept(name), threshold, seed) for name in sorted({e.family for e in episodes})}
    progress, done = (_pool(shown, select) for select in (_progress_pairs, _done_pairs))
    measures = _measure(episodes, shown, threshold, seed)
    if not says_done:  # progress is no probability
        measures["done_calibration"] = Estimate(None)
    return Assessment(
        measures,
        {name: {key: each[key] for key in FAMILY_MEASURES} for name, each in families.items()},
        sort_into_bins(progress[1], progress[2]) if len(progress[1]) else (),
        sort_into_bins(done[1], done[2]) if says_done and len(done[1]) else (),
        count_reasons(judged),
        "done" if says_done else "progress",
    )


def find_success(episode: JudgedEpisode) -> int | None:
    """Return the first frame in which the robot's goal holds; None for a failure."""
    found = find_first(episode.goals[0])
    return len(episode.state) - 1 if found is None and episode.success else found


def find_first(goal: JudgedGoal) -> int | None:
    """Return the first frame in which a goal holds, or None."""
    return int(np.argmax(goal.done)) if goal.done.any() else None


def _take_progress_as_done(judged: JudgedSequence) -> JudgedSequence:
    fields = (judged.episode, judged.goal, judged.values, judged.values, judged.reasons, judged.gains, judged.back)
    return JudgedSequence(*fields)


def _measure(
    episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence], threshold: float, seed: int
) -> dict[str, Estimate]:
    """Return every measure of these sequences, in the order of `MEANINGS`."""
    own = {each.episode: each for each in judged if each.goal.relation == "own"}
    others = [each for each in judged if each.goal.relation != "own"]
    found = _measure_order(episodes, own, others, seed)
    found |= _measure_pairs(episodes, own, seed)
    found |= _measure_gaps(episodes, own, others, seed)
    found |= _measure_done(episodes, own, others, threshold, seed)
    found |= _measure_truth(episodes, own, judged, seed)
    reasons = [reason for each in judged for reason in each.reasons]
    found["valid"] = estimate_share(reasons.count("ok"), len(reasons))
    return {name: found[name] for name in MEANINGS}


def _measure_order(
    episodes: Sequence[JudgedEpisode], own: Mapping[int, JudgedSequence], others: Sequence[JudgedSequence], seed: int
) -> dict[str, Estimate]:
    voc, failures = Tally(), Tally()
    for number, each in own.items():
        success = find_success(episodes[number])
        if success is not None:
            voc.add_correlation(number, each.values[: success + 1], np.arange(success + 1))
        elif each.goal.true:
            failures.add_correlation(number, each.values, each.goal.progress)
    found = {"voc": voc.estimate(seed), "failures": failures.estimate(seed)}
    for relation in ("object", "place", "task"):
        tally = Tally()
        for each in others:
            if each.goal.relation == relation and each.goal.true:
                tally.add_correlation(each.episode, each.values, each.goal.progress)
        found[f"other_{relation}"] = tally.estimate(seed)
    return found


def _measure_pairs(
    episodes: Sequence[JudgedEpisode], own: Mapping[int, JudgedSequence], seed: int
) -> dict[str, Estimate]:
    reverse, swap = Tally(), Tally()
    gains: list[float] = []
    for number, each in own.items():
        if (success := find_success(episodes[number])) is None or not len(each.gains):
            continue
        both = each.gains + each.back
        swap.add(number, float(np.nanmean(np.abs(both))) if np.isfinite(both).any() else math.nan)
        reverse.add_correlation(number, add_up_gains(each.back[:success][::-1]), np.arange(success + 1))
        gains += [gain for gain in each.gains[:success].tolist() if math.isfinite(gain)]
    losses = estimate_share(sum(gain < 0 for gain in gains), len(gains))
    return {"voc_reversed": reverse.estimate(seed), "negative_share": losses, "swap_error": swap.estimate(seed)}


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
        said, true = gaps[each.goal.relation]
        said.add(each.episode, float(own[each.episode].values[end] - each.values[end]))
        if each.goal.true:
            true.add(each.episode, float(own[each.episode].goal.progress[end] - each.goal.progress[end]))
        if each.goal.relation == "object":
            wrong.add(each.episode, float(each.values[end]))
    found = {f"gap_{relation}": said.estimate(seed) for relation, (said, _) in gaps.items()}
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
    wrong = [_find_highest(each.done) for each in others if not each.goal.done.any()]
    scores, truth = np.array([score for score, _ in best]), np.array([true for _, true in best], bool)
    said = scores >= threshold
    right, false = int((said & truth).sum()), int((said & ~truth).sum())
    return {
        "done_recall": estimate_share(right, int(truth.sum())),
        "done_precision": estimate_share(right, right + false),
        "done_false": estimate_share(false, int((~truth).sum())),
        "done_early": estimate_share(sum(early), len(early)),
        "done_mismatch": estimate_share(sum(s is not None and s >= threshold for s in wrong), _count_known(wrong)),
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
    ends = [(float(each.values[-1]), _measure_quality(episodes[number])) for number, each in own.items()]
    known = np.array([each for each in ends if math.isfinite(each[0])]).reshape(-1, 2)
    progress, done = (_pool(judged, select) for select in (_progress_pairs, _done_pairs))
    return {
        "progress_error": error.estimate(seed),
        "progress_calibration": estimate_calibration(*progress, seed),
        "done_calibration": estimate_calibration(*done, seed),
        "tau": estimate_tau(known[:, 0], known[:, 1], seed),
        "tau_reachable": Estimate(estimate_tau(known[:, 1], known[:, 1], seed).value, count=len(known)),
    }


def _measure_quality(episode: JudgedEpisode) -> float:
    """Return an episode's final quality: the true progress of its last frame or, if unknown, success."""
    own = episode.goals[0]
    return float(own.progress[-1]) if own.true else float(episode.success)


def _find_highest(values: Array) -> float | None:
    return float(np.nanmax(values)) if np.isfinite(values).any() else None


def _count_known(values: Sequence[float | None]) -> int:
    return sum(value is not None for value in values)


_Pooled = tuple[Array, Array, Array]


def _pool(judged: Sequence[JudgedSequence], select: Callable[[JudgedSequence], tuple[Array, Array]]) -> _Pooled:
    """Return episode, score and truth of all valid frames with known truth, [m] each."""
    parts = [(each.episode, *select(each)) for each in judged if each.goal.true]
    masks = [np.isfinite(said) for _, said, _ in parts]
    pairs = list(zip(parts, masks, strict=True))
    if not pairs:
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    return (
        np.concatenate([np.full(int(mask.sum()), number) for (number, _, _), mask in pairs]),
        np.concatenate([said[mask] for (_, said, _), mask in pairs]),
        np.concatenate([true[mask] for (_, _, true), mask in pairs]),
    )


def _progress_pairs(judged: JudgedSequence) -> tuple[Array, Array]:
    return judged.values, judged.goal.progress.astype(np.float64)


def _done_pairs(judged: JudgedSequence) -> tuple[Array, Array]:
    return judged.done, judged.goal.done.astype(np.float64)
