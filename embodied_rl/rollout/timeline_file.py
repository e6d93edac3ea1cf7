"""Timeline files of a run, one with each checkpoint: `<run>/timelines/<iteration>.json`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.rollout.timeline import Span, Timeline
from embodied_rl.runs.atomic_write import explain_errors, write_text
from embodied_rl.runs.untrusted_files import check_inside, read_json, shorten

FOLDER = "timelines"


def keep_timelines(folder: Path, iteration: int, timelines: Sequence[Timeline]) -> None:
    """Write the timelines of all ranks to a run's folder."""
    with explain_errors(folder / FOLDER):
        (folder / FOLDER).mkdir(exist_ok=True)
    content = [{"began": t.began, "total": t.total, "spans": [astuple(span) for span in t.spans]} for t in timelines]
    write_text(folder / FOLDER / f"{iteration:08d}.json", json.dumps(content) + "\n")


def read_timelines(folder: Path, iteration: int | None) -> tuple[int, list[Timeline]]:
    """Read the timelines of an iteration (by default the newest one); return the iteration and the timelines.

    Raises:
        UserError: no timeline of the iteration was kept, its file is damaged, or it is a link out of the run's folder.
    """
    check_inside(folder, folder / FOLDER)
    kept = sorted(int(file.stem) for file in (folder / FOLDER).glob("*.json") if file.stem.isdecimal())
    if not kept:
        raise UserError(f"{folder} has no timeline yet: one is kept with each checkpoint (checkpoint.every).")
    wanted = kept[-1] if iteration is None else iteration
    if wanted not in kept:
        raise UserError(f"iteration={wanted}: {folder} has kept {', '.join(map(str, kept))}.")
    file = folder / FOLDER / f"{wanted:08d}.json"
    check_inside(folder, file)
    content = read_json(file)
    try:
        found = [_timeline(entry) for entry in content]
    except (KeyError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {shorten(error)}"
        raise UserError(f"{file} is damaged ({said}); iteration=… reads another.") from None
    if not found:
        raise UserError(f"{file} is damaged: it holds no rank; iteration=… reads another.")
    return wanted, found


def _timeline(entry: Mapping[str, Any]) -> Timeline:
    spans = [Span(str(who), str(what), float(began), float(seconds), int(size)) for who, what, began, seconds, size
             in entry["spans"]]  # fmt: skip
    return Timeline(spans, float(entry["began"]), float(entry["total"]))
