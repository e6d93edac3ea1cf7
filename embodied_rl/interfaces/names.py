"""Checks of names that become folders. Imports the standard library only."""

import os

from embodied_rl.interfaces.errors import UserError

LONGEST = 200
"""Bytes of a name; file systems take 255, and temporary names are longer than the final ones."""


def check_folder_name(name: str, key: str) -> None:
    """Check that a name is a plain folder name.

    Args:
        name: as typed.
        key: the configuration key that gave the name, for the message.

    Raises:
        UserError: the name is empty, `.` or `..`, too long, or has slashes or characters that cannot be printed.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        raise UserError(
            f"{key} must be a plain name without slashes, not {name!r}. Choose another, such as demo.",
            code="name-invalid",
        )
    if (size := len(os.fsencode(name))) > LONGEST:
        raise UserError(
            f"{key} must have at most {LONGEST} bytes, not {size}: {name[:20]}… Choose a shorter one.",
            code="name-invalid",
        )
