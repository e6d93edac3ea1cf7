"""Strips of frames with what a scorer said under each, as HTML. Whatever words they hold are shown as words."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from PIL import Image

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array

FRAMES = 8
"""Frames of a strip."""
LARGEST = 160
"""Pixels of the longer side of a picture."""
_PICTURE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")
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


@dataclass(frozen=True)
class StripFrame:
    """A frame of a strip.

    Attributes:
        picture: `encode_picture` of it.
        place: its number in the episode.
        said: progress in 0…1 that the scorer said, or None.
        true: progress in truth, where it is known.
        done: probability of done that the scorer said, or None.
        note: why there is no score, or what else is to be told; a stranger's words.
    """

    picture: str
    place: int
    said: float | None
    true: float | None = None
    done: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not _PICTURE.fullmatch(self.picture):
            raise UserError("a strip holds a picture that is none.")


@dataclass(frozen=True)
class Strip:
    """Frames of an episode.

    Attributes:
        asked: the instruction that the scorer was asked about.
        told: the one that the robot was told, if it is another one; else empty.
        rest: what else is to be told.
        frames: at most a few.
    """

    asked: str
    told: str
    rest: str
    frames: tuple[StripFrame, ...]


def draw_strips(strips: Sequence[Strip]) -> str:
    """Draw strips below each other, with a legend."""
    known = any(frame.true is not None for strip in strips for frame in strip.frames)
    legend = "Blue: what the scorer said." + " Dark line: the truth." * known
    return f'{"".join(map(draw_strip, strips))}<p class="note">{legend}</p>'


def draw_strip(strip: Strip) -> str:
    """Draw one strip."""
    asked = f"<b>{escape(strip.asked)}</b>"
    if strip.told:
        asked = f"asked: {asked}, told: {escape(strip.told)}"
    frames = "".join(map(_draw_frame, strip.frames))
    heading = f"<p>{asked}<span> · {escape(strip.rest)}</span></p>"
    return f'<div class="strip">{heading}<div class="frames">{frames}</div></div>'


def _draw_frame(frame: StripFrame) -> str:
    words = ["–" if frame.said is None else f"{frame.said:.2f}"]
    words += [] if frame.true is None else [f"truth {frame.true:.2f}"]
    words += [] if frame.done is None else [f"done {frame.done:.2f}"]
    words += [frame.note] if frame.note else []
    fill = "" if frame.said is None else f'<i style="width:{_percent(frame.said)}"></i>'
    mark = "" if frame.true is None else f'<u style="left:{_percent(frame.true)}"></u>'
    text = f"frame {frame.place}: said {', '.join(words)}"
    image = f'<img src="{frame.picture}" alt="{escape(text)}">'
    caption = f"<figcaption>{'<br>'.join(map(escape, words))}</figcaption>"
    return f'<figure>{image}<div class="meter">{fill}{mark}</div>{caption}</figure>'


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0), 1):.0f}%"


def encode_picture(picture: Array) -> str:
    """Return a picture, uint8 [h, w, 3], as the address of a page that holds it."""
    drawn = Image.fromarray(np.ascontiguousarray(picture))
    if max(drawn.size) > LARGEST:
        drawn.thumbnail((LARGEST, LARGEST))
    with io.BytesIO() as buffer:
        drawn.save(buffer, "PNG" if max(picture.shape) <= LARGEST // 2 else "JPEG")
        kind = "png" if buffer.getvalue().startswith(b"\x89PNG") else "jpeg"
        return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
