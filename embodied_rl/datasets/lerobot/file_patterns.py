"""Check what meta/info.json says of a dataset's files: their patterns and the features that name them.

A dataset may come from a stranger. A pattern is text with the fields of lerobot's, such as `{chunk_index:03d}`, and
nothing of what `str.format` knows beside them: no attributes, no items, no conversions, no wide numbers.
"""

import re
from collections.abc import Collection
from pathlib import Path
from string import Formatter

from embodied_rl.datasets.lerobot.errors import DatasetError
from embodied_rl.runs.untrusted_files import check_ends, check_inside, check_name

_FORM = re.compile(r"(0?[1-9]?d?)?\Z")
"""How a number may be written: 3d, 03d or plain."""


def check_pattern(pattern: object, fields: Collection[str], where: str) -> None:
    """Check a pattern of file names.

    Args:
        pattern: as the file has it.
        fields: names that may stand in braces.
        where: the file and the key, for the message.

    Raises:
        DatasetError: the pattern is no text, has other fields, or leads out of the dataset's folder.
    """
    try:
        parts = list(Formatter().parse(pattern)) if isinstance(pattern, str) else None
    except ValueError:
        parts = None
    if parts is None:
        raise DatasetError(f"{where} is damaged: {pattern!r:.200} is no pattern of file names.")
    for _, field, form, conversion in parts:
        if field is not None and (field not in fields or conversion or not _FORM.match(form or "")):
            raise DatasetError(
                f"{where}={pattern!r:.200} has the field {field!r:.80}; understood are {', '.join(fields)}, written "
                "such as {chunk_index:03d}."
            )
    check_name("".join(text + ("0" if field is not None else "") for text, field, _, _ in parts), where, DatasetError)


def check_feature_name(name: str, where: str) -> None:
    """Check a feature's name, which becomes a folder of videos.

    Raises:
        DatasetError: the name is no plain name.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise DatasetError(f"{where} is damaged: a feature is called {name!r:.200}, which is no plain name.")


def find_file(folder: Path, name: str) -> Path:
    """Return the path of a dataset's file, absolute, so that no reader takes it for the address of something else.

    Raises:
        DatasetError: the file is a link that leads out of the folder, or has no end.
    """
    check_inside(folder, folder / name, DatasetError)
    check_ends(folder / name, DatasetError)
    return (folder / name).absolute()
