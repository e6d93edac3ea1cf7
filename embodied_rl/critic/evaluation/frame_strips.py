"""Strips of frames with scores and ground truth as HTML, the largest errors first."""

import math
from collections.abc import Sequence

import numpy as np

from embodied_rl.critic.assessment import find_success
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.sequence_scoring import JudgedSequence
from embodied_rl.interfaces.sim import Array
from embodied_rl.reports.strips import FRAMES, STYLE, Strip, StripFrame, draw_strips, encode_picture

__all__ = ["STYLE", "choose_frames", "choose_strips", "make_strips", "measure_mistake"]

WORST, OTHERS = 6, 3
"""Number of strips with the largest errors; of successes, failures and wrong instructions each."""


def make_strips(episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence]) -> list[tuple[str, str]]:
    """Return (heading, HTML) of the worst mistakes, then successes, failures and wrong instructions."""
    groups = choose_strips(episodes, judged)
    return [(title, _draw_group(episodes, chosen)) for title, chosen in groups if chosen]


def choose_strips(
    episodes: Sequence[JudgedEpisode], judged: Sequence[JudgedSequence]
) -> list[tuple[str, list[JudgedSequence]]]:
    """Choose sequences to show, each once, by heading."""
    ordered = sorted(judged, key=lambda each: -measure_mistake(each))
    worst = [each for each in ordered if measure_mistake(each) > 0][:WORST]
    left = [each for each in judged if not any(each is shown for shown in worst)]
    own = [each for each in left if each.goal.relation == "own"]
    success = [each for each in own if find_success(episodes[each.episode]) is not None][:OTHERS]
    failure = [each for each in own if find_success(episodes[each.episode]) is None][:OTHERS]
    others = [each for each in left if each.goal.relation != "own"]
    seen = {each.episode for each in success}
    near = sorted(others, key=lambda each: each.episode not in seen)[:OTHERS]
    return [
        ("The worst mistakes", worst),
        ("Successes, under their own instruction", success),
        ("Failures, under their own instruction", failure),
        ("The same pictures, under a wrong instruction", near),
    ]


def measure_mistake(judged: JudgedSequence) -> float:
    """Return the largest difference of score and truth; 0 if either is unknown in every frame."""
    if not judged.goal.true or not np.isfinite(judged.values).any():
        return 0.0
    return float(np.nanmax(np.abs(judged.values - judged.goal.progress)))


def choose_frames(judged: JudgedSequence) -> list[int]:
    """Return frames evenly over an episode, including the one with the largest error."""
    t = len(judged.values)
    chosen = {round(place) for place in np.linspace(0, t - 1, min(t, FRAMES)).tolist()}
    if measure_mistake(judged):
        chosen.add(int(np.nanargmax(np.abs(judged.values - judged.goal.progress))))
    return sorted(chosen)


def _draw_group(episodes: Sequence[JudgedEpisode], chosen: Sequence[JudgedSequence]) -> str:
    return draw_strips([_make_strip(episodes[each.episode], each) for each in chosen])


def _make_strip(episode: JudgedEpisode, judged: JudgedSequence) -> Strip:
    camera = sorted(episode.frames)[0]
    told = "" if judged.goal.relation == "own" else episode.goals[0].instruction
    end = "success" if episode.success else "failure"
    rest = f"episode {judged.episode}, {episode.actor}, {end}, camera {camera}"
    frames = tuple(_make_frame(episode.frames[camera][place], judged, place) for place in choose_frames(judged))
    return Strip(judged.goal.instruction, told, rest, frames)


def _make_frame(picture: Array, judged: JudgedSequence, place: int) -> StripFrame:
    true = float(judged.goal.progress[place]) if judged.goal.true else None
    said, done = (_find_known(float(each[place])) for each in (judged.values, judged.done))
    return StripFrame(encode_picture(picture), place, said, true, done)


def _find_known(value: float) -> float | None:
    return None if math.isnan(value) else value
