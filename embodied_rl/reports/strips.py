"""Strips of frames with a scorer's answers, as HTML and as files of a run.

`<run>/scores/strips/<first or last>_<collector>.json`: {format, version, strips: [{group, rank, strip}]}

Files may come from untrusted sources: texts are escaped, pictures are checked, and a damaged file is reported in the
run's report.
"""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.system.untrusted_files import name_file, read_json

FOLDER = Path("scores", "strips")
"""Folder of the files in a run's folder."""
FORMAT, VERSION = "embodied-rl strips", 1
KEPT = 2
"""Strips of a group, in a file and in a report."""
MAX_FILE_BYTES = 32_000_000
Group = Literal["failure_high", "success_low", "success_high", "failure_low"]
GROUPS: dict[Group, str] = {
    "failure_high": "Failures that it thinks most of",
    "success_low": "Successes that it thinks least of",
    "success_high": "Successes that it thinks most of",
    "failure_low": "Failures that it thinks least of",
}
TIMES = {"first": "the first rollout", "last": "the last one"}
FRAMES = 8
"""Frames of a strip."""
MAX_PIXELS = 160
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
    """A frame of a strip: picture as data URL, and its number in the episode.

    Attributes:
        said, true: the scorer's progress and the true one in 0…1, or None.
        done: the scorer's probability of done, or None.
        note: why there is no score, or another remark; untrusted text.
    """

    picture: str
    place: int
    said: float | None
    true: float | None = None
    done: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not _PICTURE.fullmatch(self.picture):
            raise UserError("a picture of a strip is not a PNG or JPEG data URL.", code="strip-damaged")


@dataclass(frozen=True)
class Strip:
    """At most `FRAMES` frames of an episode, with remarks.

    Attributes:
        asked: the instruction in the scorer's request.
        told: the robot's instruction, if it differs; else empty.
    """

    asked: str
    told: str
    rest: str
    frames: tuple[StripFrame, ...]


def draw_strips(strips: Sequence[Strip]) -> str:
    """Draw strips below each other, with a legend."""
    drawn, known = "", False
    for strip in strips:
        frames = ""
        for frame in strip.frames:
            known |= frame.true is not None
            texts = ["–" if frame.said is None else f"{frame.said:.2f}"]
            texts += [] if frame.true is None else [f"truth {frame.true:.2f}"]
            texts += [] if frame.done is None else [f"done {frame.done:.2f}"]
            texts += [frame.note] if frame.note else []
            fill = "" if frame.said is None else f'<i style="width:{_percent(frame.said)}"></i>'
            mark = "" if frame.true is None else f'<u style="left:{_percent(frame.true)}"></u>'
            title = f"frame {frame.place}: said {', '.join(texts)}"
            image = f'<img src="{frame.picture}" alt="{escape(title)}">'
            caption = f"<figcaption>{'<br>'.join(map(escape, texts))}</figcaption>"
            frames += f'<figure>{image}<div class="meter">{fill}{mark}</div>{caption}</figure>'
        asked = f"<b>{escape(strip.asked)}</b>"
        if strip.told:
            asked = f"asked: {asked}, told: {escape(strip.told)}"
        heading = f"<p>{asked}<span> · {escape(strip.rest)}</span></p>"
        drawn += f'<div class="strip">{heading}<div class="frames">{frames}</div></div>'
    legend = "Blue: what the scorer said." + " Dark line: the truth." * known
    return f'{drawn}<p class="note">{legend}</p>'


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0), 1):.0f}%"


def encode_picture(picture: Array) -> str:
    """Encode a picture, uint8 [h, w, 3], as a data URL."""
    drawn = Image.fromarray(np.ascontiguousarray(picture))
    if max(drawn.size) > MAX_PIXELS:
        drawn.thumbnail((MAX_PIXELS, MAX_PIXELS))
    with io.BytesIO() as buffer:
        drawn.save(buffer, "PNG" if max(picture.shape) <= MAX_PIXELS // 2 else "JPEG")
        kind = "png" if buffer.getvalue().startswith(b"\x89PNG") else "jpeg"
        return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


@dataclass(frozen=True)
class KeptStrip:
    """A strip with its group and the scorer's last progress in 0…1, by which a group is sorted."""

    group: Group
    rank: float
    strip: Strip


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    strips: tuple[KeptStrip, ...]


def choose_kept(strips: Sequence[KeptStrip], most: int = KEPT) -> list[KeptStrip]:
    """Return the first strips of each group, at most `most`."""
    chosen: list[KeptStrip] = []
    for group in GROUPS:
        sign = -1 if group.endswith("high") else 1
        own = sorted((each for each in strips if each.group == group), key=lambda each: sign * each.rank)
        chosen += own[:most]
    return chosen


def describe_strips(strips: Sequence[KeptStrip]) -> dict[str, Any]:
    """Return the content of a file, as plain JSON values."""
    return asdict(_File(FORMAT, VERSION, tuple(strips)))


def read_strips(path: Path) -> tuple[KeptStrip, ...]:
    """Read a file of strips.

    Raises:
        UserError: it is too large, damaged, or of another version.
    """
    with name_file(path):
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"has more than {MAX_FILE_BYTES} bytes; strips are smaller.", code="strip-damaged")
        found = read_json(path)
        if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
            raise UserError("holds no strips of this version.", code="strip-damaged")
        return freeze_config(_File, found).strips


def make_strip_section(run: Path) -> str:
    """Return the strips of a run as HTML; empty if it has none."""
    parts: list[str] = []
    for time, words in TIMES.items():
        found: list[KeptStrip] = []
        for file in sorted((run / FOLDER).glob(f"{time}_*.json")):
            try:
                found += read_strips(file)
            except UserError as error:
                parts.append(f'<p class="note"><b>{escape(str(error))}</b></p>')
        kept = choose_kept(found)
        for group, title in GROUPS.items():
            if own := [each.strip for each in kept if each.group == group]:
                parts.append(f"<h3>{title}, in {words}</h3>{draw_strips(own)}")
    return STYLE + "".join(parts) if parts else ""
