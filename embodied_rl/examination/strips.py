"""Strips of frames with what a scorer said and what was true under each, as HTML: the worst mistakes first."""

import base64
import io
import math
from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image

from embodied_rl.critic.assessment import find_success
from embodied_rl.critic.evaluation import JudgedSequence
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.interfaces.sim import Array

FRAMES = 8
"""Frames of a strip, spread evenly over the episode."""
LARGEST = 160
"""Pixels of the longer side of a picture."""
WORST, OTHERS = 6, 3
"""Strips of mistakes; of successes, of failures, and of wrong instructions."""
STYLE = """<style>
.strip { margin: 0 0 22px; } .strip p { margin: 0 0 6px; font-size: 14px; overflow-wrap: anywhere; }
.strip p b { font-weight: 600; } .strip p span { color: var(--soft); }
.frames { display: grid; grid-template-columns: repeat(auto-fill, minmax(96px, 1fr)); gap: 8px; }
.frames figcaption { font-weight: 400; font-size: 12px; margin: 3px 0 0; font-variant-numeric: tabular-nums; }
.frames img { width: 100%; display: block; border-radius: 6px; }
.frames .meter { position: relative; height: 6px; background: #e2e8f0; border-radius: 3px; margin-top: 4px; }
.frames .meter i { position: absolute; inset: 0 auto 0 0; background: var(--accent); border-radius: 3px; }
.frames .meter u { position: absolute; top: -2px; width: 2px; height: 10px; background: #0f172a; }
</style>"""
_HOW = "Blue: what the scorer said. Dark line: the truth."


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
    """Return the largest difference between what was said and the truth; 0 where either is unknown in every frame."""
    if not judged.goal.true or not np.isfinite(judged.values).any():
        return 0.0
    return float(np.nanmax(np.abs(judged.values - judged.goal.progress)))


def choose_frames(judged: JudgedSequence) -> list[int]:
    """Choose frames spread evenly over an episode, with the one of the largest mistake among them."""
    t = len(judged.values)
    chosen = {round(place) for place in np.linspace(0, t - 1, min(t, FRAMES)).tolist()}
    if measure_mistake(judged):
        chosen.add(int(np.nanargmax(np.abs(judged.values - judged.goal.progress))))
    return sorted(chosen)


def _draw_group(episodes: Sequence[JudgedEpisode], chosen: Sequence[JudgedSequence]) -> str:
    strips = "".join(_draw_strip(episodes[each.episode], each) for each in chosen)
    return f'{strips}<p class="note">{_HOW}</p>'


def _draw_strip(episode: JudgedEpisode, judged: JudgedSequence) -> str:
    camera = sorted(episode.frames)[0]
    told = episode.goals[0].instruction
    asked = f"<b>{escape(judged.goal.instruction)}</b>"
    if judged.goal.relation != "own":
        asked = f"asked: {asked}, told: {escape(told)}"
    end = "success" if episode.success else "failure"
    rest = f"<span> · episode {judged.episode}, {escape(episode.actor)}, {end}, camera {escape(camera)}</span>"
    frames = "".join(_draw_frame(episode.frames[camera][place], judged, place) for place in choose_frames(judged))
    return f'<div class="strip"><p>{asked}{rest}</p><div class="frames">{frames}</div></div>'


def _draw_frame(picture: Array, judged: JudgedSequence, place: int) -> str:
    said, true = float(judged.values[place]), float(judged.goal.progress[place])
    done = float(judged.done[place])
    words = ["–" if math.isnan(said) else f"{said:.2f}"]
    words += [f"truth {true:.2f}"] if judged.goal.true else []
    words += [] if math.isnan(done) else [f"done {done:.2f}"]
    fill = "" if math.isnan(said) else f'<i style="width:{100 * min(max(said, 0), 1):.0f}%"></i>'
    mark = f'<u style="left:{100 * true:.0f}%"></u>' if judged.goal.true else ""
    text = f"frame {place}: said {', '.join(words)}"
    image = f'<img src="{encode_picture(picture)}" alt="{escape(text)}">'
    caption = f"<figcaption>{'<br>'.join(words)}</figcaption>"
    return f'<figure>{image}<div class="meter">{fill}{mark}</div>{caption}</figure>'


def encode_picture(picture: Array) -> str:
    """Return a picture, uint8 [h, w, 3], as the address of a page that holds it."""
    drawn = Image.fromarray(np.ascontiguousarray(picture))
    if max(drawn.size) > LARGEST:
        drawn.thumbnail((LARGEST, LARGEST))
    with io.BytesIO() as buffer:
        drawn.save(buffer, "PNG" if max(picture.shape) <= LARGEST // 2 else "JPEG")
        kind = "png" if buffer.getvalue().startswith(b"\x89PNG") else "jpeg"
        return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
