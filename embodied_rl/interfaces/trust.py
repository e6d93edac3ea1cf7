"""Declare which settings a file may decide. Imports the standard library only.

Run folders, policy files and benchmarks may come from untrusted sources. `embodied_rl.schema.untrusted_settings`
applies this rule to every key of every command and plug-in: numbers and choices are plain by their type; a key that
takes free text declares what its text is, by one of the types below. A plug-in's key without a declaration is `CODE`.
"""

from enum import IntEnum
from typing import Annotated, Any


class Trust(IntEnum):
    """What a setting's value is. The larger, the less a file may decide it."""

    PLAIN = 0
    """Counts wherever it stands."""
    PATH = 1
    """From a file it counts if it stays within the file's own folder, or names an asset."""
    ADDRESS = 2
    """Who is connected to. Never taken from a file."""
    SECRET_NAME = 3
    """Which environment variable is read, and perhaps sent. Never taken from a file."""
    CODE = 4
    """Which code runs, which robot moves, or a safety function. Never taken from a file."""


Text = Annotated[str, Trust.PLAIN]
FilePath = Annotated[str, Trust.PATH]
Address = Annotated[str, Trust.ADDRESS]
SecretName = Annotated[str, Trust.SECRET_NAME]
Code = Annotated[str, Trust.CODE]
CodeKeys = Annotated[dict[str, Any], Trust.CODE]
"""Any keys and values; from a file they count if all values are numbers."""
