"""Strips that a run keeps of what its scorer said: a file for each collector and time, and the section of the report.

`<run>/scores/strips/<first or last>_<collector>.json`: {format, version, strips: [{group, rank, strip}]}

A file may come from a stranger: its words are shown as words, its pictures are checked to be pictures, and what is
damaged is said in the report, which goes on without it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.strips import STYLE, Strip, draw_strips
from embodied_rl.runs.untrusted_files import name_file, read_json

FOLDER = Path("scores", "strips")
"""In a run's folder."""
FORMAT, VERSION = "embodied-rl strips", 1
KEPT = 2
"""Strips of a group, in a file and in a report."""
LARGEST = 32_000_000
"""Bytes of a file, at most."""
Group = Literal["failure_high", "success_low", "success_high", "failure_low"]
GROUPS: dict[Group, str] = {
    "failure_high": "Failures that it thinks most of",
    "success_low": "Successes that it thinks least of",
    "success_high": "Successes that it thinks most of",
    "failure_low": "Failures that it thinks least of",
}
TIMES = {"first": "the first rollout", "last": "the last one"}


@dataclass(frozen=True)
class KeptStrip:
    """A strip with its place.

    Attributes:
        group: of `GROUPS`.
        rank: the scorer's last opinion in 0…1; a group's first are those of the highest, or lowest, opinion.
        strip: its frames.
    """

    group: Group
    rank: float
    strip: Strip


@dataclass(frozen=True)
class _File:
    format: str
    version: int
    strips: tuple[KeptStrip, ...]


def choose_kept(strips: Sequence[KeptStrip], most: int = KEPT) -> list[KeptStrip]:
    """Return the first strips of each group, at most so many."""
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
        if path.stat().st_size > LARGEST:
            raise UserError(f"has more than {LARGEST} bytes; strips are smaller.")
        found = read_json(path)
        if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
            raise UserError("holds no strips of this version.")
        return freeze_config(_File, found).strips


def make_strip_section(run: Path) -> str:
    """Return what a run's scorer said under a few frames, as HTML; nothing where the run kept none."""
    parts: list[str] = []
    for time, words in TIMES.items():
        found: list[KeptStrip] = []
        for file in sorted((run / FOLDER).glob(f"{time}_*.json")):
            try:
                found += read_strips(file)
            except UserError as error:
                parts.append(draw_note(str(error)))
        parts += _draw_groups(choose_kept(found), words)
    return STYLE + "".join(parts) if parts else ""


def _draw_groups(strips: Sequence[KeptStrip], when: str) -> list[str]:
    parts: list[str] = []
    for group, title in GROUPS.items():
        if own := [each.strip for each in strips if each.group == group]:
            parts.append(f"<h3>{title}, in {when}</h3>{draw_strips(own)}")
    return parts


def draw_note(text: str) -> str:
    """Draw a line that says what is missing; the text may hold anything."""
    return f'<p class="note"><b>{escape(text)}</b></p>'
