"""Checks of the file patterns and feature names in an untrusted meta/info.json.

A pattern is text with lerobot's fields, such as `{chunk_index:03d}`, and without other features of `str.format`: no
attributes, items, conversions or wide numbers.
"""

import re
from collections.abc import Collection
from pathlib import Path
from string import Formatter

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import check_ends, check_inside, check_name

_FORM = re.compile(r"(0?[1-9]?d?)?\Z")
"""Allowed formats of numbers: 3d, 03d or empty."""


class DatasetError(UserError):
    """A dataset cannot be used; the message names the dataset, the reason and the remedy."""


def check_pattern(pattern: object, fields: Collection[str], where: str) -> None:
    """Check a pattern of file names.

    Args:
        pattern: from the file.
        fields: names that are allowed in braces.
        where: the file and the key, for the message.

    Raises:
        DatasetError: the pattern is not text, has other fields, or leads out of the dataset's folder.
    """
    try:
        parts = list(Formatter().parse(pattern)) if isinstance(pattern, str) else None
    except ValueError:
        parts = None
    if parts is None:
        raise DatasetError(
            f"{where} is damaged: {pattern!r:.200} is not a pattern of file names.", code="dataset-damaged"
        )
    for _, field, form, conversion in parts:
        if field is not None and (field not in fields or conversion or not _FORM.match(form or "")):
            raise DatasetError(
                f"{where}={pattern!r:.200} has the field {field!r:.80}; allowed are {', '.join(fields)}, written "
                "such as {chunk_index:03d}.",
                code="dataset-damaged",
            )
    check_name("".join(text + ("0" if field is not None else "") for text, field, _, _ in parts), where, DatasetError)


def check_feature_name(name: str, where: str) -> None:
    """Check a feature's name, which becomes a folder of videos.

    Raises:
        DatasetError: the name is empty, a path, or not printable.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise DatasetError(
            f"{where} is damaged: the feature name {name!r:.200} is empty, a path, or not printable.",
            code="dataset-damaged",
        )


def find_file(folder: Path, name: str) -> Path:
    """Return the absolute path of a dataset's file, which no reader can mistake for a URL.

    Raises:
        DatasetError: the file is a link out of the folder, a pipe or a device.
    """
    check_inside(folder, folder / name, DatasetError)
    check_ends(folder / name, DatasetError)
    return (folder / name).absolute()
